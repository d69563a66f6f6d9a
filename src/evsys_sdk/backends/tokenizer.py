"""The part of a Hugging Face tokenizer that the SDK uses; every client's tokenizer has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Text <-> tokens, and a conversation as text."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_id(self) -> int | None: ...

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str: ...
    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], tokenize: bool = False, add_generation_prompt: bool = False
    ) -> Any:
        """The conversation as text, or as tokens if `tokenize` is set."""
        ...
