"""Normalises conversations for rendering: plain text in every message, and at least one turn to train on.

Tool calls have OpenAI's form with `arguments` as an object, because templates encode them as JSON and would encode JSON
text twice. Thinking is part of the text, `<think>...</think>` before the answer; `reasoning_content` is moved there.

Rows are validated when read (`data/rows.py`). Images and other blocks that are not text raise an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Literal, cast

from ..data.chat import block_to_image_src
from ..data.shapes import ROLES, is_object
from ..data.types import ChatMessagesRow, Message
from ..errors import DataError, show

_THINKING = re.compile(r"\s*<think>(.*?)</think>(.*)", re.DOTALL)
_OPEN, _CLOSE = "<think>", "</think>"

type Supervise = Literal["all_assistant", "last_assistant"]
"""Which assistant turns carry loss."""


def row_messages(row: ChatMessagesRow) -> list[Message]:
    """The conversation of a row, with `target_assistant` as its last turn if the messages end without one."""
    target, last = row.target_assistant, row.messages[-1] if row.messages else {}
    if target is None:
        return list(row.messages)
    if last.get("role") != "assistant":
        return [*row.messages, {"role": "assistant", "content": target}]
    answer = message_text(last, len(row.messages) - 1)
    if answer != target:
        raise DataError(
            f"messages end with the assistant turn {show(answer)}, but target_assistant is {show(target)}. "
            "Remove one of the two."
        )
    return list(row.messages)


def text_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with text content and call arguments as objects; other fields stay unchanged."""
    converted: list[Message] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise DataError(f"messages[{index}].role is {show(role)}. Use {', '.join(ROLES)}.")
        # "developer" is OpenAI's newer name of "system"; templates may drop unknown roles.
        text: Message = {**message, "role": "system" if role == "developer" else role}
        text["content"] = message_text(message, index)
        if role != "assistant" and message.get("tool_calls"):
            raise DataError(
                f"messages[{index}] has the role {role} and tool_calls. Only an assistant message may have them."
            )
        if message.get("function_call"):
            raise DataError(f"messages[{index}] has function_call, OpenAI's deprecated form. Use tool_calls.")
        thinking = text.pop("reasoning_content", None)
        if isinstance(thinking, str) and role == "assistant" and not split_thinking(text["content"])[0]:
            text["content"] = join_thinking(thinking.strip("\n"), text["content"])
        if message.get("tool_calls"):
            text["tool_calls"] = [
                _call(call, f"messages[{index}].tool_calls[{at}]") for at, call in enumerate(message["tool_calls"])
            ]
        converted.append(text)
    _sort_results(converted)
    return converted


def _sort_results(messages: list[Message]) -> None:
    """Sort results by the order of their calls, because most templates write no ids."""
    for at, message in enumerate(messages, 1):
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        order = {call["id"]: number for number, call in enumerate(calls) if "id" in call}
        results = [*takewhile(lambda message: message["role"] == "tool", messages[at:])]
        if not order or not all(result.get("tool_call_id") for result in results):
            continue
        for number, result in enumerate(results, at):
            if result["tool_call_id"] not in order:
                raise DataError(
                    f"messages[{number}].tool_call_id is {show(result['tool_call_id'])}; known calls: "
                    f"{', '.join(map(str, order))}. Use the id of the call that it answers."
                )
        messages[at : at + len(results)] = sorted(results, key=lambda result: order[result["tool_call_id"]])


def _call(call: Any, where: str) -> dict[str, Any]:
    function: Any = call.get("function", call) if is_object(call) else None
    if not is_object(call) or not is_object(function) or not isinstance(name := function.get("name"), str) or not name:
        raise DataError(f"{where} is {show(call)}; it must have a function with name and arguments.")
    arguments: Any = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError):  # reported below
            arguments = json.loads(arguments)
    if not is_object(arguments):
        raise DataError(
            f"{where}.function.arguments is {show(arguments)}, not an object. Correct the call or drop the row."
        )
    call_id = {"id": call["id"]} if call.get("id") is not None else {}
    return {**call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def message_text(message: Mapping[str, Any], index: int) -> str:
    """The text of a message: empty with calls only, text blocks joined; other content raises DataError."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise DataError(f"messages[{index}].content must be text or a list of content blocks, not {show(content)}.")
    blocks = cast(Sequence[Any], content)
    return "".join(_block_text(block, f"messages[{index}].content[{at}]") for at, block in enumerate(blocks))


def split_thinking(text: str) -> tuple[str, str]:
    """The thinking at the start of a text and the answer after it, without the newlines between."""
    match = _THINKING.fullmatch(text)
    return (match[1].strip("\n"), match[2].lstrip("\n")) if match else ("", text)


def split_growing(text: str) -> tuple[str, str]:
    """`split_thinking` for a partial text: later text never retracts what is returned."""
    stripped = text.lstrip()
    if _CLOSE in stripped or not stripped.startswith(_OPEN[: len(stripped)]):
        return split_thinking(text)
    thinking = stripped[len(_OPEN) :].lstrip("\n")
    return thinking[: held_back(thinking, [_CLOSE])].rstrip("\n"), ""


def split_answer(text: str) -> tuple[str, str]:
    """`split_thinking` for a complete answer; one cut off while thinking has only thinking."""
    return split_growing(text) if text.lstrip().startswith(_OPEN) else ("", text)


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters of a partial text are final: up to a mark, or what may become the start of one."""
    shown = len(text)
    for mark in marks:
        if (at := text.find(mark)) >= 0:
            shown = min(shown, at)
            continue
        sizes = range(min(len(mark) - 1, len(text)), 0, -1)
        shown = min(shown, next((len(text) - size for size in sizes if text.endswith(mark[:size])), shown))
    while shown and text[shown - 1] == "\ufffd":  # an incomplete character
        shown -= 1
    return shown


def join_thinking(thinking: str, answer: str) -> str:
    """The inverse of `split_thinking`."""
    return f"<think>\n{thinking}\n</think>\n\n{answer}" if thinking else answer


def without_empty_thinking(text: str) -> str:
    """A text without the empty thinking block that some templates write."""
    thinking, answer = split_thinking(text)
    return text if thinking else answer


def find_supervised_turns(messages: Sequence[Message], supervise: Supervise) -> list[int]:
    """Indices of the assistant turns that carry loss."""
    if supervise not in ("all_assistant", "last_assistant"):
        raise DataError(f"supervise is {show(supervise)}; use all_assistant or last_assistant.")
    turns: list[int] = []
    for index, message in enumerate(messages):
        if (weight := message.get("weight")) not in (None, 0, 1):  # OpenAI's format: 0 excludes a turn from the loss
            raise DataError(f"messages[{index}].weight must be 0 or 1, not {show(weight)}. Correct it or remove it.")
        if message["role"] == "assistant" and weight != 0:
            turns.append(index)
    if not turns:
        roles = ", ".join(message["role"] + " with weight 0" * (message.get("weight") == 0) for message in messages)
        raise DataError(
            f"no assistant turn to train on (roles: {roles or 'none, the conversation is empty'}). "
            "Set assistant_template of jsonl_to_chat to the field of the answer, set target_assistant, or drop the row."
        )
    return turns if supervise == "all_assistant" else turns[-1:]


def _block_text(block: Any, where: str) -> str:
    fields = cast(Mapping[str, Any], block if isinstance(block, Mapping) else {"type": block})
    kind = fields.get("type")
    if kind == "text" and isinstance(text := fields.get("text"), str):
        return text
    if block_to_image_src(fields) is not None or kind in ("image", "image_url", "input_image"):
        raise DataError(
            f"{where} is an image, but only text can be rendered. "
            "Remove the image blocks or drop their rows (see has_images)."
        )
    raise DataError(
        f"{where} is a block of type {show(kind)}, but only text can be rendered. "
        "Write it as text, or as tool_calls and tool messages."
    )
