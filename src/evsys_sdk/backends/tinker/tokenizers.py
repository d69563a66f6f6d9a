"""Tokenizers of models on a server: loaded here, because the SDK guesses and may load another one.

`auto` uses an evsys server's tokenizer, else the tokenizer that the server names for the model, else the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ...errors import BackendError, MissingExtraError, show


def load_tokenizer(choice: str, model: str, extras: Mapping[str, Any] | None, named: str | None = None) -> Any:
    """The tokenizer of `params.tokenizer`; `extras` is from an evsys server, `named` from any other."""
    served = extras.get("tokenizer") if extras else None
    if choice == "served" and served is None:
        raise BackendError(
            "params.tokenizer is 'served', but the server offers no tokenizer. Set it to a folder or to the name of a "
            "model on the Hugging Face hub."
        )
    if choice in ("auto", "served") and served is not None:
        return _load_served(served)
    return _load_pretrained(named or model if choice == "auto" else choice)


def _load_served(served: Any) -> Any:
    """The tokenizer described by an evsys server: its kind, and for Hugging Face its files or name."""
    about = cast("dict[str, Any]", served) if isinstance(served, dict) else {"kind": str(served)}
    kind = about.get("kind")
    if kind in ("bytes", "mock"):
        from ..mock.tokenizer import ByteTokenizer

        return ByteTokenizer()
    name = about.get("id")
    if isinstance(name, str) and name:
        return _load_pretrained(name)
    raise BackendError(
        f"the server describes its tokenizer as {show(about)}, which this version does not know. Set params.tokenizer "
        "to a folder or to the name of a model on the Hugging Face hub."
    )


def _load_pretrained(name: str) -> Any:
    try:
        loader: Any = import_module("transformers").AutoTokenizer
    except ImportError:
        raise MissingExtraError(f"the tokenizer {show(name)}", "tinker") from None
    try:
        return loader.from_pretrained(name, local_files_only=Path(name).is_dir())
    except Exception as error:  # errors of the library's parts: missing files, no network, bad JSON
        first = str(error).strip().split("\n", 1)[0]
        raise BackendError(
            f"the tokenizer {show(name)} cannot be loaded ({first}). Set backend.params.tokenizer to a folder with "
            "its files, or to the name of a model on the Hugging Face hub."
        ) from error
