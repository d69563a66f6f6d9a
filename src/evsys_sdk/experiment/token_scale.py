"""How many tokens of a real model one token of the mock model is; the mock's are bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ..algorithms.on_policy import conversation_of
from ..inference.renderer import Renderer, get_renderer
from ..protocols import Row

_BYTES_PER_TOKEN = 4
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class TokenScale:
    """A factor, and where it comes from."""

    per_mock_token: float = 1.0
    says: str = "tokens are those of the mock backend"


def token_scale(
    backend: str, model: str, rows: Sequence[Row], mock: Renderer, *, renderer_name: str | None = None
) -> TokenScale:
    """The factor for a model on a backend, measured on some rows where its tokenizer is on this machine."""
    if backend == "mock":
        return TokenScale()
    tokenizer = _local_tokenizer(model)
    if tokenizer is None or not rows:
        return TokenScale(1 / _BYTES_PER_TOKEN, f"tokens are characters / {_BYTES_PER_TOKEN}: '{model}' is not here")
    says = f"tokens are those of '{model}', on real rows"
    try:
        real = get_renderer(tokenizer, renderer_name)
        conversations = [conversation_of(row) for row in rows[:_MOST_ROWS]]
        sizes = [(len(real.prompt(messages)), len(mock.prompt(messages))) for messages in conversations]
        return TokenScale(sum(size for size, _ in sizes) / sum(size for _, size in sizes), says)
    except Exception:  # rows that are no conversations, or a template that refuses them: the bare text will do
        text = "\n".join(json.dumps(row, ensure_ascii=False, default=str) for row in rows[:_MOST_ROWS])
        return TokenScale(len(tokenizer.encode(text)) / len(text.encode()), says)


def _local_tokenizer(model: str) -> Any | None:
    """The tokenizer of a model, if it needs no network; None otherwise."""
    if find_spec("transformers") is None:
        return None
    try:
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        return AutoTokenizer.from_pretrained(model, local_files_only=True)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    except Exception:  # not there, or damaged: an estimate does without
        return None
