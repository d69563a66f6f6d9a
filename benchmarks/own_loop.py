"""A loop with `open_model` against one written by hand with torch and PEFT: sampling, an SFT step, a GRPO step.

    python benchmarks/own_loop.py                   # SmolLM2 on the CPU; see examples/17_local_sft/prepare.py
    python benchmarks/own_loop.py --device cuda     # random weights in the shape of Qwen3-0.6B on a GPU

"by hand" is what a strong engineer writes in half an hour: bfloat16, the adapter merged for sampling, one batch with a
static cache (compiled with CUDA graphs on a GPU), log-probabilities gathered while it samples, sequences packed into
one row without padding, logits at loss positions only, fused Adam. Both sides do the same work in turn in one process;
the first two rounds warm up. "biased" is sampling with a logit bias. Needs the extra `local`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RANK, RATE = 32, 1e-5


@dataclass(frozen=True)
class Sizes:
    """What one round does."""

    prompts: int
    """Prompts that are sampled from once each ..."""
    groups: int
    """... and those of a GRPO step, each with `samples` answers."""
    samples: int
    prompt: int
    new: int
    rows: int
    """Sequences of an SFT step ..."""
    longest: int
    """... of up to so many tokens."""


SIZES = {
    "cpu": Sizes(prompts=16, groups=4, samples=8, prompt=64, new=32, rows=16, longest=192),
    "cuda": Sizes(prompts=64, groups=16, samples=8, prompt=256, new=128, rows=24, longest=682),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", help="a folder or a name of `open_model`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["sampling", "biased", "sft", "grpo"])
    parser.add_argument("--sides", nargs="+", default=["ours", "hand"], help="to measure each in its own process")
    parser.add_argument("--no-compile", action="store_true", help="do not compile the step written by hand")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sizes = SIZES[arguments.device]
    with tempfile.TemporaryDirectory() as folder:
        name = arguments.model or prepare(arguments.device, Path(folder))
        compiled = arguments.device == "cuda" and not arguments.no_compile
        sides: dict[str, Any] = {}
        if "ours" in arguments.sides:
            sides["ours"] = Ours(name, arguments.device, Path(folder) / "ours", sizes)
        if "hand" in arguments.sides:
            sides["by hand"] = ByHand(name, arguments.device, sizes, compiled=compiled)
        print(f"{describe(arguments.device)}; {Path(name).name}; {sizes}", flush=True)
        for what in arguments.only:
            report(what, measure(what, sides, arguments.rounds + 2, sizes, arguments.device), sizes)


def prepare(device: str, folder: Path) -> str:
    from evsys_sdk.backends.local.backend import locate_model

    if device == "cpu":
        return locate_model("SmolLM2-135M-Instruct")
    from local_gpu import random_model

    return str(random_model("0.6B", folder / "Qwen3-0.6B"))


def describe(device: str) -> str:
    import peft
    import torch
    import transformers

    where = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{where}, torch {torch.__version__}, transformers {transformers.__version__}, PEFT {peft.__version__}"


def measure(what: str, sides: dict[str, Any], rounds: int, sizes: Sizes, device: str) -> dict[str, list[float]]:
    """Seconds of each round, of all sides in turn."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        work = inputs(what, sizes, number)
        for name, side in sides.items():
            found[name].append(timed(partial(getattr(side, what), *work), device))
    return {name: seconds[2:] for name, seconds in found.items()}


def timed(work: Callable[[], Any], device: str) -> float:
    """Seconds on a GPU; on a CPU those of the processor, because other work may run next to it."""
    import torch

    if device == "cpu":
        began = time.process_time()
        work()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def inputs(what: str, sizes: Sizes, number: int) -> tuple[Any, ...]:
    """Other tokens in each round: what was read before would be remembered."""
    import numpy as np

    rng = np.random.default_rng([number, len(what)])
    if what == "sft":
        lengths = rng.integers(sizes.longest // 3, sizes.longest, sizes.rows)
        return ([rng.integers(0, 256, length).tolist() for length in lengths],)
    count = sizes.groups if what == "grpo" else sizes.prompts
    return ([rng.integers(0, 256, sizes.prompt).tolist() for _ in range(count)],)


def report(what: str, found: dict[str, list[float]], sizes: Sizes) -> None:
    if what == "sft":
        tokens = sizes.rows * sizes.longest * 2 / 3
    else:
        tokens = (sizes.groups * sizes.samples if what == "grpo" else sizes.prompts) * sizes.new
    line = f"{what:9}"
    for name, seconds in found.items():
        median = statistics.median(seconds)
        line += (
            f" {name} {median * 1000:8.1f} ms {tokens / median:9,.0f} tok/s ({min(seconds):.3f}-{max(seconds):.3f})  "
        )
    if len(found) == 2:
        ours, theirs = map(statistics.median, found.values())
        line += f" x{theirs / ours:.1f}"
    print(line, flush=True)


class Ours:
    """The loop with the handle."""

    def __init__(self, name: str, device: str, folder: Path, sizes: Sizes) -> None:
        import evsys_sdk

        self.device, self.sizes = device, sizes
        params = {"device": device, "dtype": "bfloat16"} | ({"tokens_at_once": 16384} if device == "cuda" else {})
        self.model = evsys_sdk.open_model(name, backend="local", folder=folder, lora_rank=RANK, **params)
        self.model.train([([1, 2, 3], [4, 5])], learning_rate=RATE)  # an adapter of zeros would be sampled without

    def sampling(self, prompts: list[list[int]], n: int = 1, **options: Any) -> list[Any]:
        groups = self.model.sample(prompts, n, max_tokens=self.sizes.new, stop=[], **options)
        assert all(len(answer.tokens) == self.sizes.new for group in groups for answer in group)
        return groups

    def biased(self, prompts: list[list[int]]) -> None:
        self.sampling(prompts, logit_bias={token: 2.0 for token in range(300, 332) if token < self._size})

    @property
    def _size(self) -> int:
        return self.model.capabilities.vocab_size

    def sft(self, rows: list[list[int]]) -> None:
        pairs = [(row[: len(row) * 3 // 4], row[len(row) * 3 // 4 :]) for row in rows]
        self.model.train(pairs, learning_rate=RATE)

    def grpo(self, prompts: list[list[int]]) -> None:
        groups = self.sampling(prompts, self.sizes.samples)
        data = [answer.datum(index % 3 - 1.0) for group in groups for index, answer in enumerate(group)]
        self.model.train(data, "importance_sampling", learning_rate=RATE)


class ByHand:
    """The loop without it."""

    def __init__(self, name: str, device: str, sizes: Sizes, *, compiled: bool) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
        config = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self.device, self.sizes, self.model = device, sizes, get_peft_model(plain, config)
        self.body, self.head = plain.model, plain.lm_head
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=RATE, fused=True, weight_decay=0.0)
        self._caches: dict[tuple[int, int], Any] = {}
        self._step = (
            torch.compile(self._forward, mode="reduce-overhead", fullgraph=False) if compiled else self._forward
        )

    def _forward(self, tokens: Any, positions: Any, cache: Any) -> Any:
        hidden = self.body(
            input_ids=tokens,
            position_ids=positions[None],
            cache_position=positions,
            past_key_values=cache,
            use_cache=True,
        )
        return self.head(hidden.last_hidden_state[:, -1]).float()

    def sampling(self, prompts: list[list[int]], n: int = 1, bias: Any = None) -> tuple[Any, Any]:
        """Tokens and log-probabilities, (sequences, new); all prompts have one length."""
        import torch
        from transformers import StaticCache

        sizes, count = self.sizes, len(prompts) * n
        self.model.merge_adapter()
        self.model.eval()
        with torch.inference_mode():
            length = sizes.prompt + sizes.new
            if (count, length) not in self._caches:
                self._caches[count, length] = StaticCache(self.body.config, max_cache_len=length)
            cache = self._caches[count, length]
            cache.reset()
            ids = torch.tensor(prompts, device=self.device).repeat_interleave(n, dim=0)
            logits = self._forward(ids, torch.arange(sizes.prompt, device=self.device), cache)
            found, scores = [], []
            for place in range(sizes.new):
                logprobs = logits.log_softmax(dim=-1)
                chosen = logprobs if bias is None else logprobs + bias
                token = torch.multinomial(chosen.softmax(dim=-1), 1)
                found.append(token)
                scores.append(logprobs.gather(1, token))
                if place + 1 < sizes.new:
                    at = torch.full((1,), sizes.prompt + place, device=self.device)
                    logits = self._advance(token, at, cache)
        self.model.unmerge_adapter()
        return torch.cat(found, 1).tolist(), torch.cat(scores, 1).tolist()

    def _advance(self, token: Any, at: Any, cache: Any) -> Any:
        try:
            return self._step(token, at, cache).clone()
        except Exception as error:  # of the compiler
            if self._step == self._forward:
                raise
            print(f"the step by hand is not compiled: {type(error).__name__}: {str(error)[:200]}", flush=True)
            self._step = self._forward
            return self._forward(token, at, cache)

    def biased(self, prompts: list[list[int]]) -> None:
        import torch

        bias = torch.zeros(self.head.weight.shape[0], device=self.device)
        bias[300:332] = 2.0
        self.sampling(prompts, bias=bias)

    def sft(self, rows: list[list[int]]) -> None:
        weights = [[0.0] * (len(row) * 3 // 4) + [1.0] * (len(row) - len(row) * 3 // 4) for row in rows]
        total = sum(map(sum, weights))
        self._train(rows, weights, lambda logprobs, weight, _: -(logprobs * weight).sum() / total, weights)

    def grpo(self, prompts: list[list[int]]) -> None:
        sizes = self.sizes
        tokens, logprobs = self.sampling(prompts, sizes.samples)
        rows = [[*prompts[index // sizes.samples], *answer] for index, answer in enumerate(tokens)]
        advantages = [
            [0.0] * sizes.prompt + [index % sizes.samples % 3 - 1.0] * sizes.new for index in range(len(rows))
        ]
        before = [[0.0] * sizes.prompt + one for one in logprobs]
        counted = [[0.0] * sizes.prompt + [1.0] * sizes.new for _ in rows]
        total = len(rows) * sizes.new

        def loss(logprobs: Any, advantage: Any, sampled: Any) -> Any:
            return -((logprobs - sampled).exp() * advantage).sum() / total

        self._train(rows, advantages, loss, before, counted)

    def _train(
        self, rows: list[list[int]], values: Any, loss: Callable[..., Any], more: Any, counted: Any = None
    ) -> None:
        """One optimiser step on rows packed into as few as memory likes, logits only where a token counts."""
        import torch

        self.model.train()
        at_once = 16384 if self.device == "cuda" else 2048
        part: list[int] = []
        for index in range(len(rows) + 1):
            full = index == len(rows) or sum(len(rows[one]) for one in part) + len(rows[index]) > at_once
            if full and part:
                ids = torch.tensor([token for one in part for token in rows[one][:-1]], device=self.device)
                targets = torch.tensor([token for one in part for token in rows[one][1:]], device=self.device)
                positions = torch.cat([torch.arange(len(rows[one]) - 1) for one in part]).to(self.device)
                value, extra, counts = (
                    torch.tensor([x for one in part for x in given[one][1:]], device=self.device)
                    for given in (values, more, counted or values)
                )
                hidden = self.body(
                    input_ids=ids[None], position_ids=positions[None], use_cache=False
                ).last_hidden_state[0]
                live = counts != 0
                logprobs = self.head(hidden[live]).float().log_softmax(dim=-1)
                chosen = logprobs.gather(1, targets[live][:, None])[:, 0]
                loss(chosen, value[live], extra[live]).backward()
                part = []
            if index < len(rows):
                part.append(index)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
