"""Hybrids, experts and four bits on one GPU: SFT and sampling of the local backend, next to PEFT and to bfloat16.

    python benchmarks/local_families.py
    python benchmarks/local_families.py --only hybrid four_bit

Models have the shapes of Qwen3.5, Qwen3-MoE and Qwen3, and random weights. 8,192 tokens a step, lengths lognormal with
mean 441. PEFT's side is the model's own forward pass over the same sequences, padded, in as many rows as fit; without
PEFT only ours is measured. Needs the extra `local` and a GPU.
"""

from __future__ import annotations

import argparse
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import local_gpu
from local_gpu import SHAPES, Bench, Side, device_and_versions, random_model, release, report, sft_step, some_prompts

HYBRID = {
    "hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
MIXTURE = {
    "hidden_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936,
}  # fmt: skip
PADDED_ROWS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["hybrid", "experts", "four_bit", "today"])
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(device_and_versions(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            try:
                globals()[name](Path(folder), arguments.steps + 2)
            except Exception:
                traceback.print_exc()
            release()


def hybrid(folder: Path, steps: int) -> None:
    """A model of Qwen3.5's shape: SFT and sampling."""
    model = random_of("qwen3_5_text", HYBRID, folder / "hybrid")
    batches = list(Bench(model, folder, steps, 8192, True).batches())
    tokens = sum(map(len, batches[0]))
    theirs = attempt(lambda: peft_sft(model, batches[:5], "all-linear", None))
    report("3.5", "sft", ours_sft(model, folder, batches), theirs, tokens)
    ours, gap = ours_sampling(model, folder)
    report("3.5", "sampling", ours, attempt(lambda: generate(model)), 64 * 128)
    exact = ours_sampling(model, folder, dtype="float32")[1]
    print(f"      sampled against trained log-probabilities: {gap:.4f} on average, {exact:.6f} in float32", flush=True)


def experts(folder: Path, steps: int) -> None:
    """A mixture of 64 experts: adapters around them, and on them."""
    model = random_of("qwen3_moe", MIXTURE, folder / "mixture")
    batches = list(Bench(model, folder, steps, 8192, True).batches())
    tokens = sum(map(len, batches[0]))
    report("moe", "around", ours_sft(model, folder, batches, rank=8), None, tokens)
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    theirs = attempt(lambda: peft_sft(model, batches[:5], "all-linear", names))
    report("moe", "experts", ours_sft(model, folder, batches, rank=8, lora_targets=("*",)), theirs, tokens)
    ours, gap = ours_sampling(model, folder, rank=8, lora_targets=("*",))
    report("moe", "sampling", ours, None, 64 * 128)
    print(f"      sampled against trained log-probabilities: {gap:.4f} on average", flush=True)


def four_bit(folder: Path, steps: int) -> None:
    """Weights in four bits next to bfloat16."""
    for size in SHAPES:
        model = random_model(size, folder / size)
        batches = list(Bench(model, folder, steps, 8192, True).batches())
        tokens = sum(map(len, batches[0]))
        whole, small = ours_sft(model, folder, batches), ours_sft(model, folder, batches, dtype="nf4")
        report(size, "nf4 sft", small, whole, tokens)
        report(size, "nf4 smpl", *(ours_sampling(model, folder, dtype=kind)[0] for kind in ("nf4", "bfloat16")), 8192)


def today(folder: Path, steps: int) -> None:
    """Our side of `local_gpu.py`, measured in the same run."""
    local_gpu.client_of = Opened
    for size in SHAPES:
        bench = Bench(random_model(size, folder / size), folder, steps, 8192, True)
        for what in ("sft", "sampling", "grpo") if size == "0.6B" else ("sft",):
            report(size, what, *getattr(bench, what)())


def ours_sft(model: str, folder: Path, batches: list[list[list[int]]], **params: Any) -> Side:
    side = Side()
    with Opened(model, folder, **params) as client:
        for batch in batches:
            side.time(lambda batch=batch: sft_step(client, batch))
    return side


def ours_sampling(model: str, folder: Path, **params: Any) -> tuple[Side, float]:
    """64 samples of 128 tokens after prompts of 256, and how far their log-probabilities are from those of training."""
    import numpy as np

    from evsys_sdk.backends.client import SamplingParams
    from evsys_sdk.backends.datum import Datum

    side, gaps = Side(), list[float]()
    with Opened(model, folder, **params) as client:
        sft_step(client, some_prompts(4, 256))  # an adapter that is not zero
        for number in range(4):
            prompts = some_prompts(64, 256, seed=number)
            sampler = client.sampler().result()
            side.start()
            asked = [sampler.sample(prompt, 1, SamplingParams(128, seed=number, stop=[])) for prompt in prompts]
            samples = [operation.result()[0] for operation in asked]
            side.stop()
        for prompt, sample in list(zip(prompts, samples, strict=True))[:8]:
            datum = Datum.supervised([*prompt, *sample.tokens], [0.0] * 256 + [1.0] * 128)
            [found] = client.forward([datum]).result().logprobs
            gaps.append(float(np.abs(found[-128:] - np.array(sample.logprobs)).mean()))
    return side, float(np.mean(gaps))


class Opened:
    """A client for the length of a block."""

    def __init__(
        self,
        model: str,
        folder: Path,
        *,
        rank: int = 32,
        dtype: str = "bfloat16",
        lora_targets: tuple[str, ...] | None = None,
    ) -> None:
        # Not through the backend: a machine with torch and transformers is enough, whatever else it lacks.
        from evsys_sdk.backends.local.base.loading import open_base
        from evsys_sdk.backends.local.client import LocalSettings, LocalTrainingClient
        from evsys_sdk.backends.local.sampling.lanes import SamplingLimits
        from evsys_sdk.backends.local.training.passes import PassSettings

        four_bit = dtype == "nf4"
        kind = "bfloat16" if four_bit else dtype
        base = open_base(model, device="cuda", dtype=kind, gguf_file=None, threads=None, four_bit=four_bit)
        settings = LocalSettings(
            model,
            lora_rank=rank,
            lora_targets=lora_targets,
            passes=PassSettings(16384),
            sampling=SamplingLimits(256, 262144, 16384),
        )
        self._client = LocalTrainingClient.start(base, settings, Path(tempfile.mkdtemp(dir=folder)))

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
        del self._client
        release()


def peft_sft(model: str, batches: list[list[list[int]]], modules: str, parameters: list[str] | None) -> Side:
    """The same sequences, padded, through the model's own code."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa").to("cuda")
    config = LoraConfig(r=8 if parameters else 32, target_modules=modules, target_parameters=parameters)
    adapted = get_peft_model(plain, config)
    adam = torch.optim.AdamW([one for one in adapted.parameters() if one.requires_grad], 1e-5, fused=True)

    def step(batch: list[list[int]]) -> None:
        ordered = sorted(batch, key=len)
        for start in range(0, len(ordered), PADDED_ROWS):
            rows = ordered[start : start + PADDED_ROWS]
            tokens = torch.zeros(len(rows), len(rows[-1]), dtype=torch.long)
            mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
            for number, ids in enumerate(rows):
                tokens[number, : len(ids)], mask[number, : len(ids)] = torch.tensor(ids), 1
                first = len(ids) * 3 // 4
                labels[number, first : len(ids)] = tokens[number, first : len(ids)]
            inputs = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
            adapted(**{name: part.cuda() for name, part in inputs.items()}).loss.backward()
        adam.step()
        adam.zero_grad()

    side = Side()
    for batch in batches:
        side.time(lambda batch=batch: step(batch))
    return side


def generate(model: str) -> Side:
    """The same samples from `generate`."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, attn_implementation="sdpa").to("cuda")
    side = Side()
    for number in range(3):
        tokens = torch.tensor(some_prompts(64, 256, seed=number)).cuda()
        options = {"max_new_tokens": 128, "min_new_tokens": 128, "do_sample": True, "pad_token_id": 0}
        side.time(lambda tokens=tokens, options=options: plain.generate(tokens, **options))
    return side


def attempt(measure: Callable[[], Side]) -> Side | None:
    """A side that may be missing, or fail."""
    try:
        return measure()
    except Exception as error:
        print(f"theirs failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None
    finally:
        release()


def random_of(kind: str, shape: dict[str, Any], folder: Path) -> str:
    """A folder with a model of a shape, and a tokenizer of bytes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    random_model("0.6B", folder)  # for its tokenizer
    config = AutoConfig.for_model(
        kind, max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=256, **shape
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    release()
    return str(folder)


if __name__ == "__main__":
    main()
