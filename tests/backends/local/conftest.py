"""Tiny models with random weights, made on the spot: a folder with a config, weights and a byte tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 259


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What torch and transformers deprecate in themselves is their own affair."""
    for item in items:
        if item.get_closest_marker("local") is not None:
            for module in (
                "torch",
                "triton",
                "transformers",
                "trl",
                "peft",
                "accelerate",
                "datasets",
                "multiprocessing",
            ):
                item.add_marker(pytest.mark.filterwarnings(rf"ignore:::{module}"))


def byte_tokenizer(*, template: str | None = CHATML) -> Any:
    """A tokenizer of transformers with a token for every byte, and ChatML's control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    plain.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def save_tiny(folder: Path, arch: str = "llama", *, template: str | None = CHATML, seed: int = 0, **config: Any) -> str:
    """A model of two layers with random weights; wide enough at the start that its adapters can learn."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.25,
        "tie_word_embeddings": True,
        "eos_token_id": VOCABULARY - 1,
        "bos_token_id": None,
        "pad_token_id": VOCABULARY - 3,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(arch, **{**shape, **config}))
    model.save_pretrained(folder)
    byte_tokenizer(template=template).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a tiny model of an architecture; made once per session."""
    folders: dict[str, str] = {}

    def folder_of(arch: str) -> str:
        if arch not in folders:
            extra: dict[str, Any] = {"sliding_window": 8} if arch in ("mistral", "gemma3_text") else {}
            folders[arch] = save_tiny(tmp_path_factory.mktemp(arch), arch, **extra)
        return folders[arch]

    return folder_of


@pytest.fixture(scope="session")
def llama(tiny: Callable[[str], str]) -> str:
    """The folder of a tiny Llama."""
    return tiny("llama")


@pytest.fixture
def make_client(tmp_path: Path, llama: str) -> Iterator[Callable[..., Any]]:
    """Build local clients that are closed after the test."""
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.local.backend import LocalBackend

    backend, prepared = LocalBackend(), list[dict[str, Any]]()

    def make(*, run_dir: Path | None = None, params: dict[str, Any] | None = None, **spec: Any) -> Any:
        chosen = LocalBackend(**{"exact": True, "device": "cpu", **(params or {})})
        model = ModelSpec(**{"name": llama, "lora_rank": 8, **spec})
        prepared.append(chosen.prepare(model=model, run_dir=run_dir or tmp_path))
        return prepared[-1]["training_client"]

    yield make
    for handles in prepared:
        backend.teardown(handles)


@pytest.fixture
def client(make_client: Callable[..., Any]) -> Any:
    """One local client."""
    return make_client()
