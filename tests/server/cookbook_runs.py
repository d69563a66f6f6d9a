"""Runs the training loops of tinker-cookbook, as its own package ships them, against a server.

    python cookbook_runs.py URL LOG_DIR custom sft sft_longer rl rl_learns rl_kl rl_async rl_stream

Two things tell the cookbook about a model that it does not list, both through its public functions: the tokenizer is
registered under the model's name, and the config names a renderer. Nothing of the cookbook or of `tinker` is patched.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import chz
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as sft
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tokenizer_utils import register_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evsys_sdk.backends.mock.tokenizer import ByteTokenizer

MODEL, RENDERER = "tiny", "role_colon"


@cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """The mock's tokenizer as one of transformers, made on the spot: byte b is token b, control tokens follow."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    tokenizer = Tokenizer(models.BPE(vocab={name: byte for byte, name in names.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([ByteTokenizer().decode([token]) for token in ByteTokenizer.all_special_ids])
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=ByteTokenizer.eos_token, pad_token="<|endoftext|>", name_or_path=MODEL
    )
    text = "<|im_start|>Grüße, 1 + 1?\n<|im_end|>"
    assert fast_tokenizer.encode(text, add_special_tokens=False) == ByteTokenizer().encode(text)
    return fast_tokenizer


def supervised(url: str, log_dir: Path, *, epochs: int = 1) -> sft.Config:
    """24 conversations in batches of 4."""
    rows = log_dir.parent / "conversations.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"{a} + {b}?"}, {"role": "assistant", "content": str(a + b)}]}
        for a in range(6)
        for b in range(4)
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name=RENDERER, max_length=256, batch_size=4
    )
    return sft.Config(
        log_path=str(log_dir),
        model_name=MODEL,
        recipe_name="evsys_test",
        renderer_name=RENDERER,
        dataset_builder=FromConversationFileBuilder(common_config=common, file_path=str(rows), test_size=4),
        learning_rate=2e-3,
        num_epochs=epochs,
        base_url=url,
        save_every=3,
        eval_every=3,
    )


class SaysE(ProblemEnv):
    """A task that can be learned in a few steps: an answer is right if it has an e in it."""

    def get_question(self) -> str:
        return "Say e."

    def check_answer(self, sample_str: str) -> bool:
        return "e" in sample_str

    def check_format(self, sample_str: str) -> bool:
        return True

    def get_reference_answer(self) -> str:
        return "e"


class SaysEDataset(RLDataset):
    """The same task again and again."""

    def get_batch(self, index: int) -> list[ProblemGroupBuilder]:
        renderer = get_renderer(RENDERER, tokenizer=byte_tokenizer())
        return [ProblemGroupBuilder(env_thunk=partial(SaysE, renderer), num_envs=16) for _ in range(4)]

    def __len__(self) -> int:
        return 8


@chz.chz
class SaysEBuilder(RLDatasetBuilder):
    """What a config holds."""

    async def __call__(self) -> tuple[SaysEDataset, None]:
        return SaysEDataset(), None


def reinforcement(url: str, log_dir: Path, **changes: Any) -> rl.Config:
    """Four iterations of the arithmetic recipe."""
    options: dict[str, Any] = {
        "learning_rate": 1e-3,
        "dataset_builder": ArithmeticDatasetBuilder(
            batch_size=4, model_name_for_tokenizer=MODEL, renderer_name=RENDERER, n_batches=4, group_size=4
        ),
        "model_name": MODEL,
        "recipe_name": "evsys_test",
        "renderer_name": RENDERER,
        "max_tokens": 8,
        "log_path": str(log_dir),
        "base_url": url,
        "save_every": 2,
        "eval_every": 0,
    }
    return rl.Config(**{**options, **changes})


def custom_loss(url: str, log_dir: Path) -> None:
    """The package's own custom losses (they need torch): by hand, cross-entropy has the gradient of the named one."""
    import tinker
    import torch

    def by_hand(data: list[Any], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
        loss = -torch.stack([(w * lp).sum() for w, lp in zip(weights, logprobs, strict=True)]).sum()
        return loss, {"mine": 1.0}

    text = list(b"a custom loss")
    inputs = {"target_tokens": text[1:], "weights": [0.5 + 0.1 * i for i in range(len(text) - 1)]}
    datum = tinker.types.Datum(model_input=tinker.types.ModelInput.from_ints(text[:-1]), loss_fn_inputs=inputs)
    service, losses = tinker.ServiceClient(base_url=url), dict[str, list[float]]()
    for name in ("named", "by hand"):
        client = service.create_lora_training_client(MODEL, rank=8, seed=1)
        losses[name] = []
        for _ in range(3):
            if name == "named":
                output = client.forward_backward([datum], "cross_entropy").result()
            else:
                output = client.forward_backward_custom([datum], by_hand).result()
            step = client.optim_step(tinker.types.AdamParams(learning_rate=1e-3)).result()
            losses[name] += [output.metrics["loss:sum"], step.metrics["grad_norm"]]
    (log_dir / "losses.json").write_text(json.dumps(losses), encoding="utf-8")


def main(kind: str, url: str, log_dir: Path) -> None:
    """One run of a kind."""
    log_dir.mkdir(parents=True, exist_ok=True)
    match kind:
        case "custom":
            custom_loss(url, log_dir)
        case "sft":
            asyncio.run(sft.main(supervised(url, log_dir)))
        case "sft_longer":
            asyncio.run(sft.main(supervised(url, log_dir, epochs=2)))
        case "rl":
            asyncio.run(rl.main(reinforcement(url, log_dir)))
        case "rl_learns":
            asyncio.run(rl.main(reinforcement(url, log_dir, dataset_builder=SaysEBuilder(), learning_rate=3e-3)))
        case "rl_kl":
            reference = rl.KLReferenceConfig(base_model=MODEL)
            config = reinforcement(
                url, log_dir, kl_penalty_coef=0.1, kl_reference_config=reference, compute_post_kl=True, loss_fn="ppo"
            )
            asyncio.run(rl.main(config))
        case "rl_async":
            limits = rl.AsyncConfig(max_steps_off_policy=2, groups_per_batch=4)
            asyncio.run(rl.main(reinforcement(url, log_dir, async_config=limits)))
        case "rl_stream":
            stream = rl.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)
            asyncio.run(rl.main(reinforcement(url, log_dir, stream_minibatch_config=stream)))
        case _:
            raise SystemExit(f"unknown kind {kind}")


if __name__ == "__main__":
    register_tokenizer(MODEL, byte_tokenizer)
    for name in sys.argv[3:]:
        main(name, sys.argv[1], Path(sys.argv[2]) / name.removesuffix("_longer"))
