"""What a conversation is before it is rendered: plain text in every message, and at least one turn to learn from.

Tool calls are given to templates in one form, OpenAI's with `arguments` as an object: templates write them as JSON, and
arguments that are JSON text already would be encoded twice. Thinking is part of the text, `<think>...</think>` before
the answer; what APIs carry in its own field (`reasoning_content`) is put there.

Rows are checked when they are read (`data/rows.py`); here they become what a chat template understands. Images and
other blocks that are not text are refused, never dropped.
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
    """The conversation of a row, with `target_assistant` as its last turn where the messages do not end with one."""
    target, last = row.target_assistant, row.messages[-1] if row.messages else {}
    if target is None:
        return list(row.messages)
    if last.get("role") != "assistant":
        return [*row.messages, {"role": "assistant", "content": target}]
    said = message_text(last, len(row.messages) - 1)
    if said != target:
        raise DataError(
            f"messages end with the assistant turn {show(said)}, but target_assistant is {show(target)}. "
            "Remove one of the two, so that it is clear which answer to learn."
        )
    return list(row.messages)


def text_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with plain text as content and objects as arguments of calls, everything else as it came."""
    found: list[Message] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise DataError(f"messages[{index}].role is {show(role)}. Use {', '.join(ROLES)}.")
        # "developer" is OpenAI's newer word for "system"; templates know the older one, and may drop other roles.
        text: Message = {**message, "role": "system" if role == "developer" else role}
        text["content"] = message_text(message, index)
        if role != "assistant" and message.get("tool_calls"):
            raise DataError(f"messages[{index}] is of the role {role} and calls tools. Only the assistant does.")
        if message.get("function_call"):
            raise DataError(f"messages[{index}] has function_call, OpenAI's older form. Write the call as tool_calls.")
        thinking = text.pop("reasoning_content", None)
        if isinstance(thinking, str) and role == "assistant" and not split_thinking(text["content"])[0]:
            text["content"] = join_thinking(thinking.strip("\n"), text["content"])
        if message.get("tool_calls"):
            text["tool_calls"] = [
                _call(call, f"messages[{index}].tool_calls[{at}]") for at, call in enumerate(message["tool_calls"])
            ]
        found.append(text)
    _sort_results(found)
    return found


def _sort_results(messages: list[Message]) -> None:
    """Put results in the order of their calls, because most templates write no ids."""
    for at, message in enumerate(messages, 1):
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        order = {call["id"]: number for number, call in enumerate(calls) if "id" in call}
        results = [*takewhile(lambda one: one["role"] == "tool", messages[at:])]
        if not order or not all(result.get("tool_call_id") for result in results):
            continue
        for number, result in enumerate(results, at):
            if result["tool_call_id"] not in order:
                raise DataError(
                    f"messages[{number}].tool_call_id is {show(result['tool_call_id'])}, and the calls before it are "
                    f"{', '.join(map(str, order))}. Give the id of the call that it answers."
                )
        messages[at : at + len(results)] = sorted(results, key=lambda one: order[one["tool_call_id"]])


def _call(call: Any, where: str) -> dict[str, Any]:
    function: Any = call.get("function", call) if is_object(call) else None
    if not is_object(call) or not is_object(function) or not isinstance(name := function.get("name"), str) or not name:
        raise DataError(f"{where} is {show(call)}; it must have a function with name and arguments.")
    arguments: Any = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError):  # the refusal below shows it
            arguments = json.loads(arguments)
    if not is_object(arguments):
        raise DataError(
            f"{where}.function.arguments is {show(arguments)}, not an object. Correct the call or drop the row."
        )
    known = {"id": call["id"]} if call.get("id") is not None else {}
    return {**known, "type": "function", "function": {"name": name, "arguments": arguments}}


def message_text(message: Mapping[str, Any], index: int) -> str:
    """The text of a message; nothing for one that only calls tools, text blocks joined, and anything else refused."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise DataError(f"messages[{index}].content must be text or a list of content blocks, not {show(content)}.")
    blocks = cast(Sequence[Any], content)
    return "".join(_block_text(block, f"messages[{index}].content[{at}]") for at, block in enumerate(blocks))


def split_thinking(text: str) -> tuple[str, str]:
    """What a text thinks aloud at its start, and the answer after it; newlines around the two belong to neither."""
    found = _THINKING.fullmatch(text)
    return (found[1].strip("\n"), found[2].lstrip("\n")) if found else ("", text)


def split_growing(text: str) -> tuple[str, str]:
    """The same of a text that may continue: nothing that it becomes takes back what is returned."""
    said = text.lstrip()
    if _CLOSE in said or not said.startswith(_OPEN[: len(said)]):
        return split_thinking(text)
    begun = said[len(_OPEN) :].lstrip("\n")
    return begun[: held_back(begun, [_CLOSE])].rstrip("\n"), ""


def split_answer(text: str) -> tuple[str, str]:
    """The same of a whole answer; one that was cut off while it thought has only thinking."""
    return split_growing(text) if text.lstrip().startswith(_OPEN) else ("", text)


def held_back(text: str, marks: Sequence[str]) -> int:
    """How much of a growing text can be shown: nothing from a mark on, and not what may turn out to begin one."""
    shown = len(text)
    for mark in marks:
        if (at := text.find(mark)) >= 0:
            shown = min(shown, at)
            continue
        sizes = range(min(len(mark) - 1, len(text)), 0, -1)
        shown = min(shown, next((len(text) - size for size in sizes if text.endswith(mark[:size])), shown))
    while shown and text[shown - 1] == "\ufffd":  # a character whose bytes have not all come
        shown -= 1
    return shown


def join_thinking(thinking: str, answer: str) -> str:
    """The text that `split_thinking` splits."""
    return f"<think>\n{thinking}\n</think>\n\n{answer}" if thinking else answer


def without_empty_thinking(text: str) -> str:
    """A text without the empty thinking block by which a template says that there was no thinking."""
    thinking, answer = split_thinking(text)
    return text if thinking else answer


def find_supervised_turns(messages: Sequence[Message], supervise: Supervise) -> list[int]:
    """Where the assistant turns are that carry loss."""
    if supervise not in ("all_assistant", "last_assistant"):
        raise DataError(f"supervise is {show(supervise)}; use all_assistant or last_assistant.")
    turns: list[int] = []
    for index, message in enumerate(messages):
        if (weight := message.get("weight")) not in (None, 0, 1):  # OpenAI's: 0 for a turn that is shown only
            raise DataError(f"messages[{index}].weight must be 0 or 1, not {show(weight)}. Correct it or remove it.")
        if message["role"] == "assistant" and weight != 0:
            turns.append(index)
    if not turns:
        roles = ", ".join(message["role"] + " with weight 0" * (message.get("weight") == 0) for message in messages)
        raise DataError(
            f"there is no assistant turn to learn from (roles: {roles or 'none, the conversation is empty'}). "
            "Say which field holds the answer with assistant_template of jsonl_to_chat, set target_assistant, or drop "
            "the row."
        )
    return turns if supervise == "all_assistant" else turns[-1:]


def _block_text(block: Any, where: str) -> str:
    fields = cast(Mapping[str, Any], block if isinstance(block, Mapping) else {"type": block})
    kind = fields.get("type")
    if kind == "text" and isinstance(text := fields.get("text"), str):
        return text
    if block_to_image_src(fields) is not None or kind in ("image", "image_url", "input_image"):
        raise DataError(
            f"{where} is an image, and the model has no vision here: only text is rendered. "
            "Remove the image blocks or drop rows that have them (has_images tells which)."
        )
    raise DataError(
        f"{where} is a block of type {show(kind)}, and only text blocks can be rendered. "
        "Write it as text, or as tool_calls and tool messages."
    )
