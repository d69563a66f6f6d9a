"""A byte-level BPE tokenizer as GGUF keeps it: tokens in the order of their ids, their types, and the merges."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from ..errors import DataError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""GGUF's types of tokens."""
_SPLITTERS: Final = (
    # How llama.cpp calls the ways in which text is cut before the merges; told by what stands in the tokenizer.
    (r"\p{N}{1,3}", "llama-bpe"),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", "qwen2"),
    ('"individual_digits": true', "smollm"),
)
_NO_MERGE: Final = "\u0120 \u0120"
"""llama.cpp refuses a list without any. In a vocabulary of bytes this one makes no token, so it changes nothing."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a GGUF file says about its tokenizer."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    splitter: str

    @classmethod
    def read(cls, base: Path, size: int) -> Vocabulary:
        """From `tokenizer.json`; other kinds of tokenizers are refused."""
        path = base / "tokenizer.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            model = content["model"]
            if model["type"] != "BPE" or "ByteLevel" not in json.dumps(content.get("decoder")):
                raise DataError(
                    f"{path}: this tokenizer is {model['type']} without bytes as letters, which is not written here. "
                    "Name llama.cpp's convert_hf_to_gguf.py with --param converter=FILE."
                )
            tokens = {int(id): text for text, id in cast(dict[str, int], model["vocab"]).items()}
            merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read ({type(error).__name__}: {error}). Use another base.") from None
        types = dict.fromkeys(tokens, NORMAL)
        for added in content.get("added_tokens") or ():
            tokens[added["id"]] = added["content"]
            types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
        if max(tokens) >= size:
            raise DataError(f"{path} has the token {max(tokens)}, and the model only {size}. Use another base.")
        ids = range(size)  # a model may have more rows than its tokenizer has tokens
        return cls(
            [tokens.get(id, f"[PAD{id}]") for id in ids],
            [types.get(id, UNUSED) for id in ids],
            merges or [_NO_MERGE],
            _splitter(content),
        )


def _splitter(content: dict[str, Any]) -> str:
    cut = content.get("pre_tokenizer")
    text = json.dumps(cut)
    patterns = text + "".join(_patterns(cut))
    return next((name for mark, name in _SPLITTERS if mark in patterns), "gpt-2")


def _patterns(value: Any) -> list[str]:
    """Every regular expression in a description, as it is without JSON's escapes."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        own = [fields["Regex"]] if isinstance(fields.get("Regex"), str) else []
        return [*own, *(one for inner in fields.values() for one in _patterns(inner))]
    if isinstance(value, list):
        return [one for inner in cast(list[Any], value) for one in _patterns(inner)]
    return []
