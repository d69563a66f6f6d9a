"""The local backend against TRL and `generate` on one GPU: medians of the same work, with peak memory beside each.

    python benchmarks/local_gpu.py                                  # 0.6B: SFT, sampling, a GRPO step; 4B: SFT
    python benchmarks/local_gpu.py --sizes 0.6B --only sampling --samples 1 8 64 256 --profile

Models have the shapes of Qwen3 and random weights, so nothing is downloaded. LoRA of rank 32 on all linear layers,
bfloat16, no gradient checkpointing. Without TRL only our side is measured. Needs the extra `local` and a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RANK = 32
LONGEST = 2048
SHAPES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@dataclass
class Side:
    """Seconds of each step of one side, and the most memory that it held."""

    seconds: list[float] = field(default_factory=list[float])
    peak_gib: float = 0.0

    def start(self) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self._began = time.perf_counter()

    def stop(self) -> None:
        import torch

        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._began)
        self.peak_gib = max(self.peak_gib, torch.cuda.max_memory_allocated() / 1024**3)

    def time(self, work: Callable[[], Any]) -> None:
        self.start()
        work()
        self.stop()

    @property
    def median(self) -> float:
        """Of all steps but the first two, which warm up."""
        return statistics.median(self.seconds[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--only", nargs="+", default=["sft", "sampling", "grpo"], choices=["sft", "sampling", "grpo"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of an SFT batch")
    parser.add_argument("--samples", type=int, nargs="+", default=[64], help="sequences that are sampled together")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one round of sampling")
    parser.add_argument("--ours-only", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    if not torch.cuda.is_available():
        parser.error("there is no GPU here; benchmarks/local_cpu.py measures on a CPU")
    print(device_and_versions(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            model = random_model(size, Path(folder) / size)
            for name in arguments.only:
                if name != "sft" and size != "0.6B":
                    continue
                bench = Bench(model, Path(folder), arguments.steps + 2, arguments.tokens, arguments.ours_only)
                for samples in arguments.samples if name == "sampling" else [0]:
                    bench.samples, bench.profile = samples, arguments.profile
                    report(size, f"{name} {samples or ''}", *getattr(bench, name)())


def report(size: str, what: str, ours: Side, theirs: Side | None, tokens: float) -> None:
    rate = tokens / ours.median
    line = f"{size:5} {what:12} {rate:9,.0f} tok/s {ours.median * 1000:8.1f} ms {ours.peak_gib:6.1f} GiB"
    if theirs is not None:
        line += f"   theirs {tokens / theirs.median:8,.0f} tok/s {theirs.median * 1000:8.1f} ms {theirs.peak_gib:6.1f}"
        line += f" GiB   x{theirs.median / ours.median:.1f}"
    print(line, flush=True)


class Bench:
    """One model, and what is measured on it; every measure returns (ours, theirs, tokens of one step)."""

    def __init__(self, model: str, folder: Path, steps: int, tokens: int, ours_only: bool) -> None:
        self.model, self.folder, self.steps, self.tokens = model, folder, steps, tokens
        self.with_theirs = not ours_only and has_trl()
        self.samples, self.profile = 64, False

    def sft(self) -> tuple[Side, Side | None, float]:
        """Batches of ragged sequences; a quarter of each is supervised."""
        batches = list(self.batches())
        ours = Side()
        with client_of(self.model, self.folder) as client:
            for batch in batches:
                ours.time(lambda batch=batch: sft_step(client, batch))
        tokens = statistics.mean(sum(map(len, batch)) for batch in batches)
        release()
        return ours, self._theirs(lambda: self._their_sft(batches)), tokens

    def _theirs(self, measure: Callable[[], Side]) -> Side | None:
        if not self.with_theirs:
            return None
        try:
            return measure()
        except Exception as error:
            print(f"theirs failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            return None
        finally:
            release()

    def _their_sft(self, batches: list[list[list[int]]]) -> Side:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        # Enough sequences that packing them into rows gives as many tokens a step as we have.
        rows = [
            {"input_ids": ids, "completion_mask": [0] * (len(ids) * 3 // 4) + [1] * (len(ids) - len(ids) * 3 // 4)}
            for batch in batches * 2
            for ids in batch
        ]
        args = SFTConfig(
            **common(self.folder, self.steps),
            per_device_train_batch_size=self.tokens // LONGEST,
            packing=True,
            max_length=LONGEST,
            completion_only_loss=True,
        )
        model, tokenizer = peft_model(self.model)
        trainer = SFTTrainer(model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        side = timed(trainer)
        filled = [len(row) for row in trainer.train_dataset["input_ids"]]
        # Rows are not quite full: count their tokens, not their places.
        side.seconds = [seconds * LONGEST / statistics.mean(filled) for seconds in side.seconds]
        return side

    def sampling(self) -> tuple[Side, Side | None, float]:
        """Sequences of 128 new tokens after prompts of 256."""
        prompts, new = some_prompts(self.samples, 256), 128
        ours = self._our_sampling(prompts, new)
        release()
        return ours, self._theirs(lambda: self._their_sampling(prompts, new)), len(prompts) * new

    def _our_sampling(self, prompts: list[list[int]], new: int) -> Side:
        from evsys_sdk.backends.client import SamplingParams

        side = Side()
        with client_of(self.model, self.folder) as client:
            sft_step(client, [prompts[0]])
            sampler = client.sampler().result()

            def sample(prompts: list[list[int]]) -> None:
                for asked in [sampler.sample(prompt, 1, SamplingParams(new, stop=[])) for prompt in prompts]:
                    assert len(asked.result()[0].tokens) == new

            for number in range(self.steps):  # prompts that were read before would be remembered
                others = some_prompts(len(prompts), len(prompts[0]), seed=number + 2)
                side.time(lambda others=others: sample(others))
            if self.profile:
                print_kernels(lambda: sample(some_prompts(len(prompts), len(prompts[0]), seed=1000)))
        return side

    def _their_sampling(self, prompts: list[list[int]], new: int) -> Side:
        import torch

        side = Side()
        model, _ = peft_model(self.model)
        model.eval()
        ids = torch.tensor(prompts, device="cuda")
        asked: dict[str, Any] = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": True, "pad_token_id": 0}
        for _ in range(5):
            with torch.no_grad():
                side.time(lambda: model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **asked))
        return side

    def grpo(self) -> tuple[Side, Side | None, float]:
        """A snapshot, 16 groups of 8 samples with 128 new tokens, and a training step on them."""
        groups, size, new = 16, 8, 128
        prompts = some_prompts(groups, 256)
        ours = Side()
        with client_of(self.model, self.folder) as client:
            sft_step(client, [prompts[0]])
            for number in range(self.steps):
                others = some_prompts(groups, 256, seed=number + 2)
                ours.time(lambda others=others, number=number: grpo_step(client, others, size, new, number))
        release()
        return ours, self._theirs(lambda: self._their_grpo(prompts, size, new)), groups * size * new

    def _their_grpo(self, prompts: list[list[int]], size: int, new: int) -> Side:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        model, tokenizer = peft_model(self.model)
        steps = 4
        args = GRPOConfig(
            **common(self.folder, steps),
            per_device_train_batch_size=len(prompts) * size // 2,  # all at once would not fit
            gradient_accumulation_steps=2,
            num_generations=size,
            max_completion_length=new,
            shuffle_dataset=False,
            generation_kwargs={"min_new_tokens": new},
        )
        rows = [{"prompt": tokenizer.decode(prompt)} for prompt in prompts] * steps
        trainer = GRPOTrainer(
            model,
            args=args,
            train_dataset=Dataset.from_list(rows),
            reward_funcs=lambda completions, **_: [float(number % 3) for number in range(len(completions))],
            processing_class=tokenizer,
        )
        side = timed(trainer)
        return side

    def batches(self) -> Iterator[list[list[int]]]:
        """Sequences whose lengths are lognormal with mean 441, as many as fit into a step."""
        import numpy as np

        rng = np.random.default_rng(0)
        for _ in range(self.steps):
            batch: list[list[int]] = []
            left = self.tokens
            while left >= 16:
                length = min(left, LONGEST, max(16, int(rng.lognormal(np.log(441) - 0.32, 0.8))))
                batch.append(rng.integers(0, 256, length).tolist())
                left -= length
            yield batch


def print_kernels(work: Callable[[], Any], most: int = 14) -> None:
    """The kernels that take the most time in some work, with how often each runs, and how long the GPU is busy."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        wall = (time.perf_counter() - began) * 1000
    kernels = sorted(found.key_averages(), key=lambda one: -one.self_device_time_total)
    busy = sum(one.self_device_time_total for one in kernels) / 1000
    print(f"    {wall:.1f} ms, kernels {busy:.1f} ms", flush=True)
    for one in kernels[:most]:
        total = one.self_device_time_total
        each = total / max(1, one.count)
        print(f"    {total / 1000:8.2f} ms {one.count:7} x {each:7.1f} us  {one.key[:70]}", flush=True)


def sft_step(client: Any, batch: list[list[int]]) -> None:
    from evsys_sdk.backends.client import AdamParams
    from evsys_sdk.backends.datum import Datum

    data = [
        Datum.supervised(ids, [0.0] * (len(ids) * 3 // 4) + [1.0] * (len(ids) - len(ids) * 3 // 4)) for ids in batch
    ]
    client.forward_backward(data, "cross_entropy")
    client.optim_step(AdamParams(1e-5, grad_clip_norm=1.0)).result()


def grpo_step(client: Any, prompts: list[list[int]], size: int, new: int, number: int) -> None:
    from evsys_sdk.backends.client import AdamParams, SamplingParams
    from evsys_sdk.backends.datum import Datum

    sampler = client.sampler().result()
    asked = [sampler.sample(prompt, size, SamplingParams(new, seed=number, stop=[])) for prompt in prompts]
    data = [
        Datum.policy(prompt, sample.tokens, sample.logprobs, float(index % 3 - 1) / new)
        for prompt, operation in zip(prompts, asked, strict=True)
        for index, sample in enumerate(operation.result())
    ]
    client.forward_backward(data, "importance_sampling")
    client.optim_step(AdamParams(1e-6, grad_clip_norm=1.0)).result()


def timed(trainer: Any) -> Side:
    """Let the trainer train; steps are timed from one beginning to the next, so that loading data counts too."""
    from transformers import TrainerCallback

    side = Side()

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            side.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            side.stop()

    trainer.add_callback(Clock())
    trainer.train()
    return side


class client_of:
    """A client for the length of a block."""

    def __init__(self, model: str, folder: Path) -> None:
        from evsys_sdk.backends.client import ModelSpec
        from evsys_sdk.backends.local.backend import LocalBackend

        run_dir = Path(tempfile.mkdtemp(dir=folder))
        backend = LocalBackend(device="cuda", dtype="bfloat16", tokens_at_once=16384)
        self._client = backend.prepare(model=ModelSpec(model, lora_rank=RANK), run_dir=run_dir)["training_client"]

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        del self._client
        release()


def common(folder: Path, steps: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trl"),
        "max_steps": steps,
        "logging_steps": 1000,
        "save_strategy": "no",
        "report_to": "none",
        "bf16": True,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }


def peft_model(model: str) -> tuple[Any, Any]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa").to("cuda")
    config = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(plain, config), AutoTokenizer.from_pretrained(model)


def some_prompts(count: int, length: int, seed: int = 1) -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(seed)
    return [rng.integers(0, len(LETTERS), length).tolist() for _ in range(count)]


def random_model(size: str, folder: Path) -> str:
    """A folder with a Qwen3 of a size, and a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    alphabet = [*LETTERS, *sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(LETTERS)), "<end>"]
    plain = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=151936,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=256,
        **SHAPES[size],
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    release()
    return str(folder)


def release() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def has_trl() -> bool:
    try:
        import trl
    except ImportError:
        return False
    return bool(trl)


def device_and_versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found: dict[str, str] = {}
    for name in ("torch", "transformers", "peft", "trl"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return f"{torch.cuda.get_device_name()}, {json.dumps(found)}"


if __name__ == "__main__":
    main()
