"""The local backend against TRL and `generate` on this machine's CPU: ratios of times of the same work, step by step.

    python benchmarks/local_cpu.py                                     # a small model with random weights
    python benchmarks/local_cpu.py --model outputs/models/SmolLM2-135M-Instruct --steps 6

Both do the same work in turns in one process: an SFT step on the same ragged batch, a GRPO step on the same tasks, the
same number of sampled tokens, and conversations of three turns, each of which `generate` reads from the beginning. CPU
seconds are the process's own and say more than wall time on a busy machine. Needs the extra `local`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import tempfile
import time
import unittest.mock
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RANK = 16
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards box with quiet jugs of cold liquid glass"
WORDS = TEXT.split()


@dataclass
class Watch:
    """Wall and CPU seconds of one side, per step."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    def start(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        self.wall.append(time.perf_counter() - self._began[0])
        self.cpu.append(time.process_time() - self._began[1])

    def time(self, work: Callable[[], Any]) -> None:
        self.start()
        work()
        self.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a model; by default a small one with random weights")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--only", nargs="+", default=list(MEASURES), choices=list(MEASURES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(arguments.threads)
    print(f"{os.cpu_count()} cores, {platform.machine()}, {arguments.threads} threads, {versions()}")
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or small_model(Path(folder) / "model")
        for dtype in arguments.dtype:
            for name in arguments.only:
                ours, theirs, work = MEASURES[name](model, dtype, arguments.steps, Path(folder))
                report(f"{dtype:8} {name:8}", ours, theirs, work)


def report(what: str, ours: Watch, theirs: Watch, work: int) -> None:
    wall, cpu = (
        statistics.median(there) / statistics.median(here)
        for here, there in ((ours.wall, theirs.wall), (ours.cpu, theirs.cpu))
    )
    rates = [work / statistics.median(watch.wall) for watch in (ours, theirs)]
    print(f"{what}  {rates[0]:8.0f} tok/s, theirs {rates[1]:8.0f}  x{wall:.2f} wall, x{cpu:.2f} CPU", flush=True)


def sft(model: str, dtype: str, steps: int, folder: Path) -> tuple[Watch, Watch, int]:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from evsys_sdk.backends.client import AdamParams
    from evsys_sdk.backends.datum import Datum

    handles, client = prepare(model, dtype, folder)
    lengths = [40, 60, 90, 130, 180, 240, 70, 110]
    rows: list[dict[str, list[int]]] = []
    for number, length in enumerate(lengths * (steps + 1)):
        ids = token_ids(client, length, number)
        rows.append({"input_ids": ids, "labels": [-100] * (length * 3 // 4) + ids[length * 3 // 4 :]})
    trainer = SFTTrainer(
        peft_model(handles, client),
        args=SFTConfig(
            **common(folder, steps + 1),
            per_device_train_batch_size=len(lengths),
            train_sampling_strategy="sequential",
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=handles["tokenizer"],
    )

    def step(number: int) -> None:
        batch = rows[number * len(lengths) : (number + 1) * len(lengths)]
        data = [Datum.supervised(row["input_ids"], [float(label != -100) for label in row["labels"]]) for row in batch]
        client.forward_backward(data, "cross_entropy")
        client.optim_step(AdamParams(1e-4, grad_clip_norm=1.0)).result()

    ours, theirs = in_turns(trainer, step)
    client.close()
    return ours, theirs, sum(lengths)


def sampling(model: str, dtype: str, steps: int, folder: Path) -> tuple[Watch, Watch, int]:
    import torch

    from evsys_sdk.backends.client import SamplingParams

    handles, client = prepare(model, dtype, folder)
    prompts, samples, new = 4, 4, 32
    texts = [token_ids(client, 40, number) for number in range(prompts)]
    sampler = nonzero(client).sampler().result()
    theirs_model = peft_model(handles, client)
    theirs_model.eval()
    prompt = torch.tensor(texts)

    def ours_once() -> None:
        asked = [sampler.sample(text, samples, SamplingParams(new, seed=1, stop=[])) for text in texts]
        for operation in asked:
            operation.result()

    def theirs_once() -> None:
        with torch.no_grad():
            theirs_model.generate(
                input_ids=prompt.repeat_interleave(samples, 0),
                attention_mask=torch.ones(prompts * samples, prompt.shape[1], dtype=torch.long),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=0,
            )

    ours, theirs = Watch(), Watch()
    ours_once(), theirs_once()
    for _ in range(steps):
        ours.time(ours_once)
        theirs.time(theirs_once)
    client.close()
    return ours, theirs, prompts * samples * new


def turns(model: str, dtype: str, steps: int, folder: Path) -> tuple[Watch, Watch, int]:
    """Conversations with the same instructions: an answer, a reply of the world, and so on, three answers in all."""
    import torch

    from evsys_sdk.backends.client import SamplingParams
    from evsys_sdk.backends.local.base import packing
    from evsys_sdk.backends.local.sampling.prefix_cache import CachedPrefix, PrefixCache

    handles, client = prepare(model, dtype, folder)
    conversations, new, instructions = 8, 24, token_ids(client, 300, 0)
    starts = [[*instructions, *token_ids(client, 40, number)] for number in range(conversations)]
    sampler = nonzero(client).sampler().result()
    theirs_model = peft_model(handles, client)
    theirs_model.eval()

    def ours_once() -> None:
        texts = starts
        for turn in range(3):
            asked = [sampler.sample(text, 1, SamplingParams(new, stop=[])) for text in texts]
            answers = [operation.result()[0].tokens for operation in asked]
            texts = [
                [*text, *answer, *token_ids(client, 40, turn)] for text, answer in zip(texts, answers, strict=True)
            ]

    def anew() -> None:
        """The same, reading every prompt from the beginning to the end."""
        with (
            unittest.mock.patch.object(PrefixCache, "find", return_value=CachedPrefix()),
            unittest.mock.patch.object(packing, "pack", functools.partial(packing.pack, share=False)),
        ):
            ours_once()

    def theirs_once() -> None:
        texts = torch.tensor(starts)
        for turn in range(3):
            with torch.no_grad():
                found: Any = theirs_model.generate(
                    input_ids=texts,
                    attention_mask=torch.ones_like(texts),
                    max_new_tokens=new,
                    min_new_tokens=new,
                    do_sample=True,
                    output_logits=True,
                    return_dict_in_generate=True,
                    pad_token_id=0,
                )
            reply = torch.tensor([token_ids(client, 40, turn)] * conversations)
            texts = torch.cat([found.sequences, reply], dim=1)

    ours, without, theirs = Watch(), Watch(), Watch()
    ours_once(), theirs_once()
    for _ in range(steps):
        # Every rollout begins with instructions that no one has read, as with the new sampler of a training step.
        sampler = client.sampler().result()
        ours.time(ours_once)
        sampler = client.sampler().result()
        without.time(anew)
        theirs.time(theirs_once)
    client.close()
    work = conversations * 3 * new
    report(f"{dtype:8} no reuse", without, theirs, work)
    return ours, theirs, work


def grpo(model: str, dtype: str, steps: int, folder: Path) -> tuple[Watch, Watch, int]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from evsys_sdk.backends.client import AdamParams, SamplingParams
    from evsys_sdk.backends.datum import Datum

    handles, client = prepare(model, dtype, folder)
    prompts, group, new = 4, 8, 32
    questions = [" ".join(WORDS[number % 5 :]) * 2 for number in range(prompts)]
    texts = [client.tokenizer.encode(question, add_special_tokens=False) for question in questions]
    trainer = GRPOTrainer(
        peft_model(handles, client),
        args=GRPOConfig(
            **common(folder, steps + 1),
            per_device_train_batch_size=prompts * group,
            num_generations=group,
            max_completion_length=new,
            shuffle_dataset=False,
            generation_kwargs={"min_new_tokens": new},
        ),
        train_dataset=Dataset.from_list([{"prompt": question} for question in questions] * (steps + 1)),
        reward_funcs=lambda completions, **_: [float(number % 3) for number in range(len(completions))],
        processing_class=handles["tokenizer"],
    )

    def step(number: int) -> None:
        sampler = client.sampler().result()
        asked = [sampler.sample(text, group, SamplingParams(new, seed=number, stop=[])) for text in texts]
        data = [
            Datum.policy(text, sample.tokens, sample.logprobs, float(index % 3 - 1) / (group * prompts * new))
            for text, operation in zip(texts, asked, strict=True)
            for index, sample in enumerate(operation.result())
        ]
        client.forward_backward(data, "importance_sampling")
        client.optim_step(AdamParams(1e-6, grad_clip_norm=1.0)).result()

    ours, theirs = in_turns(trainer, step)
    client.close()
    return ours, theirs, prompts * group * new


def in_turns(trainer: Any, step: Callable[[int], None]) -> tuple[Watch, Watch]:
    """Let the trainer train, and make one step of ours after each of its steps; the first of both warms up."""
    from transformers import TrainerCallback

    ours, theirs = Watch(), Watch()

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            theirs.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            theirs.stop()
            ours.time(lambda: step(state.global_step - 1))

    trainer.add_callback(Turns())
    trainer.train()
    for watch in (ours, theirs):
        del watch.wall[0], watch.cpu[0]
    return ours, theirs


def common(folder: Path, steps: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trl"),
        "max_steps": steps,
        "logging_steps": 1000,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }


def prepare(model: str, dtype: str, folder: Path) -> tuple[dict[str, Any], Any]:
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.local.backend import LocalBackend

    run_dir = Path(tempfile.mkdtemp(dir=folder))
    spec = ModelSpec(model, lora_rank=RANK)
    handles = LocalBackend(device="cpu", dtype=dtype).prepare(model=spec, run_dir=run_dir)
    return handles, handles["training_client"]


def nonzero(client: Any) -> Any:
    """The client after one step, so that its adapter changes something and has to be applied."""
    from evsys_sdk.backends.client import AdamParams
    from evsys_sdk.backends.datum import Datum

    client.forward_backward([Datum.supervised([1, 2, 3], [1.0] * 3)], "cross_entropy")
    client.optim_step(AdamParams(1e-4)).result()
    return client


def peft_model(handles: dict[str, Any], client: Any) -> Any:
    from peft import PeftModel

    from evsys_sdk.backends.local.base.loading import load_plain

    return PeftModel.from_pretrained(
        load_plain(handles["base"].key), client.sampler("start").result().ref, is_trainable=True
    )


def token_ids(client: Any, length: int, number: int) -> list[int]:
    text = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(length + number))
    return client.tokenizer.encode(text, add_special_tokens=False)[:length]


def small_model(folder: Path) -> str:
    """Four layers with random weights and a byte tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate([*alphabet, "<end>"])}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", pad_token="<end>").save_pretrained(folder)
    shape = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "llama", vocab_size=32000, num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=256, **shape
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


def versions() -> str:
    from importlib.metadata import version

    return json.dumps({name: version(name) for name in ("torch", "transformers", "peft", "trl")})


MEASURES = {"sft": sft, "sampling": sampling, "turns": turns, "grpo": grpo}


if __name__ == "__main__":
    main()
