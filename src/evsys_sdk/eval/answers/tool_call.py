"""Parse tool calls of a conversation, from message fields or from tags in the text.

A malformed call is kept as a call without a name: it matches nothing but still counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...data.chat import text_of
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ...errors import MISSING, EvalError, show
from .answer import all_tagged, strict_loads, without_code_blocks, without_thinking

_ARGUMENTS = ("arguments", "parameters", "input")
"""Keys of the arguments, in order of precedence."""


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """One call: the tool's name and its arguments."""

    name: str
    """Empty if the call is malformed."""
    arguments: Any = field(default_factory=dict[str, Any])
    """`MISSING` in an expected call that accepts any arguments."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form for records."""
        return {"name": self.name, **({} if self.arguments is MISSING else {"arguments": self.arguments})}


UNREADABLE = ParsedToolCall("", None)


def calls_in(messages: Iterable[Message], *, tag: str | None) -> list[ParsedToolCall]:
    """Every call of the assistant, in order; `tag` surrounds calls in texts."""
    parsed: list[ParsedToolCall] = []
    for message in messages:
        if message.get("role") == "assistant":
            calls: Any = message.get("tool_calls")
            if is_list(calls) and calls:
                parsed += [read_call(call) for call in calls]
            elif tag is not None:
                parsed += calls_in_text(text_of(message.get("content")), tag=tag)
    return parsed


def calls_in_text(text: str, *, tag: str) -> list[ParsedToolCall]:
    """Every `<tag>{"name": ..., "arguments": {...}}</tag>`; a tag may hold a list of calls too.

    Calls in reasoning, code blocks, `inline code`, > quotes and comments do not count.
    """
    parsed: list[ParsedToolCall] = []
    quoted = re.compile(rf"(?:`|^[ \t]*>[ \t>]*|<!--\s*)<{re.escape(tag)}>.*?(?:</{re.escape(tag)}>|\Z)", re.M | re.S)
    for inside in all_tagged(quoted.sub("", without_code_blocks(without_thinking(text))), tag):
        try:
            value = strict_loads(inside)
        except ValueError:
            parsed.append(UNREADABLE)
            continue
        parsed += [read_call(call) for call in (value if is_list(value) else [value])]
    return parsed


def read_call(value: Any) -> ParsedToolCall:
    """Parse a call in OpenAI's form or as a plain `{name, arguments}`; `UNREADABLE` for anything else."""
    call = _inner(value)
    if call is None or not isinstance(call.get("name"), str):
        return UNREADABLE
    key = next((key for key in _ARGUMENTS if key in call), None)
    arguments: Any = {} if key is None else call[key]
    if isinstance(arguments, str):
        try:
            arguments = strict_loads(arguments) if arguments.strip() else {}
        except ValueError:
            return UNREADABLE
    return ParsedToolCall(call["name"], {} if arguments is None else arguments)


def read_expected_calls(expected: Any) -> list[ParsedToolCall]:
    """The expected calls: one or a list of names or `{name, arguments}`; no arguments accept any."""
    if expected is None:
        raise EvalError("the task has no expected calls. Add 'expected' to its verifier; [] means no call.")
    return [_read_expected_call(value) for value in (expected if is_list(expected) else [expected])]


def _read_expected_call(value: Any) -> ParsedToolCall:
    if isinstance(value, str) and value:
        return ParsedToolCall(value, MISSING)
    call = read_call(value)
    if call is UNREADABLE:
        raise EvalError(f"{show(value)} is not an expected call. Write a name, or name and arguments.")
    fields = _inner(value) or {}
    return call if any(key in fields for key in _ARGUMENTS) else ParsedToolCall(call.name, MISSING)


def _inner(value: Any) -> dict[str, Any] | None:
    """The object with the name, which OpenAI nests under `function`."""
    call: Any = value.get("function", value) if is_object(value) else None
    return call if is_object(call) else None
