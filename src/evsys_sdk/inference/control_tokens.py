"""Keeps control tokens in messages ordinary text, so that they never become structure.

A message may contain `<|im_end|><|im_start|>assistant`, by accident or on purpose, which tokenizers read as the end of
a turn. Before rendering, a guard character is inserted into every control token in a message. Before encoding, the text
is split at the guards, so that each part encodes as ordinary text.

    controls = ControlTokens(tokenizer)
    text = template(controls.guard(messages))              # ... say <GUARD|im_end|> ...
    tokens = [token for part in cut(text) for token in tokenizer.encode(part)]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..data.types import Message, ToolDefinition
from ..errors import DataError, show
from .renderer import Tokenizer, decode

_GUARD = "\U0010ffff"
"""A Unicode noncharacter; one in the input is escaped by doubling."""
_ESCAPED = json.dumps(_GUARD)[1:-1]
"""The guard as escaped by JSON in a rendered text."""
# One guard is a split point, two are the character itself.
_CUT = re.compile(f"{_GUARD}(?!{_GUARD})|{_GUARD}{_GUARD}")


class ControlTokens:
    """The control tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known = _texts_of(tokenizer)
        self._pattern = _pattern(self._known)

    def guard(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with all control tokens guarded."""
        # Roles come from a fixed list.
        return [{**self._guard(message), "role": message["role"]} for message in messages]

    def guard_tools(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Tool definitions with all control tokens guarded."""
        return [self._guard(tool) for tool in tools]

    def _guard(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guard_text(value)
        if isinstance(value, Mapping):
            return {key: self._guard(inner) for key, inner in cast(Mapping[Any, Any], value).items()}
        if isinstance(value, list | tuple):
            return [self._guard(inner) for inner in cast(Sequence[Any], value)]
        return value

    def _guard_text(self, text: str) -> str:
        # A tokenizer that does not list its control tokens is probed with each text.
        pattern = self._pattern if self._known else _pattern(self._find_in(text))
        # Escape first, or inserted guards would be doubled.
        text = text.replace(_GUARD, _GUARD + _GUARD)
        if pattern.search(text) is None:
            return text
        # After the first character: both parts are ordinary text.
        guarded = pattern.sub(lambda match: f"{match[0][0]}{_GUARD}{match[0][1:]}", text)
        if remaining := {token for part in cut(guarded) for token in self._find_in(part)}:
            raise DataError(
                f"a message contains {show(min(remaining))}, which this tokenizer always encodes as a control token. "
                "Remove it from the text."
            )
        return guarded

    def _find_in(self, text: str) -> set[str]:
        """The control tokens that the tokenizer reads in a text."""
        tokens = set(self._tokenizer.encode(text, add_special_tokens=False))
        shown = {token: decode(self._tokenizer, [token]) for token in tokens}
        return {
            text
            for token, text in shown.items()
            if text and not decode(self._tokenizer, [token], skip_special_tokens=True)
        }


class GuardedTokenizer:
    """A tokenizer for code that encodes whole texts: guarded text stays ordinary text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *args: Any, **options: Any) -> list[int]:
        first, *others = cut(text)
        tokens = self._tokenizer.encode(first, *args, **options)
        for part in others:
            # Special tokens belong only to the start of the whole text.
            tokens = [*tokens, *self._tokenizer.encode(part, add_special_tokens=False)]
        return tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def cut(text: str) -> list[str]:
    """The parts of a guarded text, to be encoded separately."""
    text = text.replace(_ESCAPED, _GUARD)
    parts, done = [""], 0
    for match in _CUT.finditer(text):
        parts[-1] += text[done : match.start()]
        if len(match[0]) == 1:
            parts.append("")
        else:  # an escaped character of the text
            parts[-1] += _GUARD
        done = match.end()
    parts[-1] += text[done:]
    return parts


def _texts_of(tokenizer: Tokenizer) -> set[str]:
    """The texts of all control tokens; empty if the tokenizer does not list them."""
    source: Any = tokenizer
    texts = {decode(tokenizer, [token]) for token in getattr(source, "all_special_ids", None) or ()}
    texts |= {str(text) for text in getattr(source, "all_special_tokens", None) or ()}
    added: Mapping[int, Any] = getattr(source, "added_tokens_decoder", None) or {}
    return (texts | {str(token) for token in added.values() if getattr(token, "special", False)}) - {""}


def _pattern(texts: set[str]) -> re.Pattern[str]:
    # Guard the JSON escape too, or `cut` would read it as a guard.
    # Longest first: one control token may be a prefix of another.
    longest = sorted((*texts, _ESCAPED), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)))
