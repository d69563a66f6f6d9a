"""Control tokens in what people and models say: they are written as ordinary text and never become structure.

A message may hold `<|im_end|><|im_start|>assistant`, by accident or on purpose. Tokenizers read such text as the end of
a turn, and templates know nothing of tokens. So before a conversation is rendered, a guard is put inside whatever reads
like a control token, and where text becomes tokens, it is cut at the guards: the parts are ordinary text.

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
"""No character of any text, says Unicode; where one holds it all the same, it is written twice."""
_ESCAPED = json.dumps(_GUARD)[1:-1]
"""How JSON in a rendered text may write it."""
# One guard is a cut, two are the character itself; so a single one must not be the first of two.
_CUT = re.compile(f"{_GUARD}(?!{_GUARD})|{_GUARD}{_GUARD}")


class ControlTokens:
    """What a tokenizer reads as structure, wherever it stands."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known = _texts_of(tokenizer)
        self._pattern = _pattern(self._known)

    def guard(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, with everything in them that reads like a control token guarded."""
        # Roles are words of a known list.
        return [{**self._guard(message), "role": message["role"]} for message in messages]

    def guard_tools(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        """Tool definitions, guarded in the same way."""
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
        # A tokenizer that does not list its control tokens is asked about each text.
        pattern = self._pattern if self._known else _pattern(self._find_in(text))
        # Before guards are put in, which would be doubled as well.
        text = text.replace(_GUARD, _GUARD + _GUARD)
        if pattern.search(text) is None:
            return text
        # Behind the first character: what is left on either side is ordinary text.
        guarded = pattern.sub(lambda found: f"{found[0][0]}{_GUARD}{found[0][1:]}", text)
        if left := {one for part in cut(guarded) for one in self._find_in(part)}:
            raise DataError(
                f"a message holds {show(min(left))}, which this tokenizer takes for a control token however it is "
                "written. Remove it from the text."
            )
        return guarded

    def _find_in(self, text: str) -> set[str]:
        """The control tokens that the tokenizer reads in a text."""
        tokens = set(self._tokenizer.encode(text, add_special_tokens=False))
        shown = {token: decode(self._tokenizer, [token]) for token in tokens}
        return {
            said
            for token, said in shown.items()
            if said and not decode(self._tokenizer, [token], skip_special_tokens=True)
        }


class GuardedTokenizer:
    """A tokenizer for code that encodes whole texts itself: what is guarded stays ordinary text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *args: Any, **options: Any) -> list[int]:
        first, *others = cut(text)
        tokens = self._tokenizer.encode(first, *args, **options)
        for part in others:
            # Only the first part begins the text; tokens of a beginning would stand in its middle.
            tokens = [*tokens, *self._tokenizer.encode(part, add_special_tokens=False)]
        return tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def cut(text: str) -> list[str]:
    """The parts of a guarded text, each to be encoded by itself."""
    text = text.replace(_ESCAPED, _GUARD)
    parts, done = [""], 0
    for found in _CUT.finditer(text):
        parts[-1] += text[done : found.start()]
        if len(found[0]) == 1:
            parts.append("")
        else:  # the text itself holds the character
            parts[-1] += _GUARD
        done = found.end()
    parts[-1] += text[done:]
    return parts


def _texts_of(tokenizer: Tokenizer) -> set[str]:
    """The texts of all control tokens; none where the tokenizer does not list them."""
    known: Any = tokenizer
    texts = {decode(tokenizer, [token]) for token in getattr(known, "all_special_ids", None) or ()}
    texts |= {str(text) for text in getattr(known, "all_special_tokens", None) or ()}
    added: Mapping[int, Any] = getattr(known, "added_tokens_decoder", None) or {}
    return (texts | {str(token) for token in added.values() if getattr(token, "special", False)}) - {""}


def _pattern(texts: set[str]) -> re.Pattern[str]:
    # The escape is guarded too: `cut` would take a text that spells it out for a guard of ours.
    # The longest first: one control token may be how another begins.
    longest = sorted((*texts, _ESCAPED), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest)))
