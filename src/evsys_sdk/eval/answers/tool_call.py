"""The tool calls of a conversation, wherever they are written: next to the text of a message, or as tags inside it.

What is meant as a call and cannot be read is kept as a call without a name, because it matches nothing and must not
vanish.
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
"""What arguments are called, in the order they are looked for."""


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """One call: which tool, with which arguments."""

    name: str
    """Empty when the call could not be read."""
    arguments: Any = field(default_factory=dict[str, Any])
    """`MISSING` in an expected call whose arguments do not matter."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form for records."""
        return {"name": self.name, **({} if self.arguments is MISSING else {"arguments": self.arguments})}


UNREADABLE = ParsedToolCall("", None)


def calls_in(messages: Iterable[Message], *, tag: str | None) -> list[ParsedToolCall]:
    """Every call of the assistant, in order; `tag` is what surrounds calls inside texts."""
    found: list[ParsedToolCall] = []
    for message in messages:
        if message.get("role") == "assistant":
            calls: Any = message.get("tool_calls")
            if is_list(calls) and calls:
                found += [read_call(call) for call in calls]
            elif tag is not None:
                found += calls_in_text(text_of(message.get("content")), tag=tag)
    return found


def calls_in_text(text: str, *, tag: str) -> list[ParsedToolCall]:
    """Every `<tag>{"name": ..., "arguments": {...}}</tag>`; a tag may hold a list of calls too.

    A call in a thought was not made, nor was one that is quoted: in a code block, `as code`, behind >, in a comment.
    """
    found: list[ParsedToolCall] = []
    quoted = re.compile(rf"(?:`|^[ \t]*>[ \t>]*|<!--\s*)<{re.escape(tag)}>.*?(?:</{re.escape(tag)}>|\Z)", re.M | re.S)
    for inside in all_tagged(quoted.sub("", without_code_blocks(without_thinking(text))), tag):
        try:
            value = strict_loads(inside)
        except ValueError:
            found.append(UNREADABLE)
            continue
        found += [read_call(call) for call in (value if is_list(value) else [value])]
    return found


def read_call(value: Any) -> ParsedToolCall:
    """A call as OpenAI writes it, or as a plain `{name, arguments}`; `UNREADABLE` if it is neither."""
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
    """The calls a task expects: one or a list of names or `{name, arguments}`; without arguments, any will do."""
    if expected is None:
        raise EvalError("there are no expected calls. Add 'expected' to the task's verifier; [] means no call at all.")
    return [_read_expected_call(one) for one in (expected if is_list(expected) else [expected])]


def _read_expected_call(value: Any) -> ParsedToolCall:
    if isinstance(value, str) and value:
        return ParsedToolCall(value, MISSING)
    call = read_call(value)
    if call is UNREADABLE:
        raise EvalError(f"{show(value)} is not an expected call. Write a name, or name and arguments.")
    written = _inner(value) or {}
    return call if any(key in written for key in _ARGUMENTS) else ParsedToolCall(call.name, MISSING)


def _inner(value: Any) -> dict[str, Any] | None:
    """The object with the name: OpenAI puts it inside another one."""
    call: Any = value.get("function", value) if is_object(value) else None
    return call if is_object(call) else None
