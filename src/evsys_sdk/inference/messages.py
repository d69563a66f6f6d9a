"""Conversations for other servers: OpenAI-style messages, checked once before they are sent.

A message has `role` (system, developer, user, assistant, tool) and `content` (text or blocks of text and images). An
assistant may have `tool_calls`; each of them is answered by a tool message with its `tool_call_id`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.chat import block_to_image_src
from ..data.shapes import ROLES, is_list, is_object
from ..data.types import Message
from ..errors import DataError, show


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function the assistant calls."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it; it may be broken."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What its provider wants back with it."""

    def parse_arguments(self) -> dict[str, Any]:
        """The arguments as an object; text that is none is kept under `text`, because the call was made that way."""
        try:
            found: Any = json.loads(self.arguments or "{}")
        except ValueError:
            found = self.arguments
        return found if is_object(found) else {"text": self.arguments}

    def to_dict(self) -> dict[str, Any]:
        """As an item of `tool_calls`."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


def check_conversation(messages: Sequence[Message]) -> list[Message]:
    """The conversation as chat completions take it; an error names the message that is wrong.

    A tool message without `tool_call_id` answers the first open call. Where there was no structured call, as with
    agents that read calls from the text, it becomes a user message.
    """
    found: list[Message] = []
    open_calls: list[FunctionCall] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise DataError(f"messages[{index}].role is {show(role)}. Use {', '.join(ROLES)}.")
        if role != "tool" and open_calls:
            ids = ", ".join(f"{call.id} ({call.name})" for call in open_calls)
            raise DataError(
                f"messages[{index}] comes before the tool calls {ids} are answered. Add one tool message for each of "
                "them, with its tool_call_id."
            )
        sent: Message = {"role": role, "content": _content(message.get("content"), index)}
        if role == "tool":
            sent |= _answered(message, open_calls, index)
            open_calls = [call for call in open_calls if call.id != sent.get("tool_call_id")]
        elif isinstance(name := message.get("name"), str):
            sent["name"] = name
        if calls := calls_of(message, index):
            open_calls, sent["tool_calls"] = calls, [call.to_dict() for call in calls]
        found.append(sent)
    if not found:
        raise DataError("there are no messages to answer. Give at least one.")
    return found


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Tool definitions in OpenAI's form, given with or without their `function` envelope."""
    found: list[dict[str, Any]] = []
    for index, tool in enumerate(tools or ()):
        function: Any = tool.get("function", tool)
        name: Any = function.get("name") if is_object(function) else None
        if not isinstance(name, str) or not name:
            raise DataError(
                f"tools[{index}] is {show(dict(tool))}; it must look like "
                '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}.'
            )
        parameters: Any = function.get("parameters") or {"type": "object", "properties": {}}
        described = {"name": name, "description": str(function.get("description") or ""), "parameters": parameters}
        found.append({"type": "function", "function": described})
    return found


def calls_of(message: Message, index: int = 0) -> list[FunctionCall]:
    """The calls of a message; `index` is its number in the conversation, by which errors name it."""
    given = message.get("tool_calls")
    return [_call(call, index, at) for at, call in enumerate(given if is_list(given) else [])]


def _answered(message: Message, open_calls: list[FunctionCall], index: int) -> Message:
    """What differs in a tool message: the call that it answers."""
    given = str(message.get("tool_call_id") or "")
    if not open_calls and not given:
        return {"role": "user"}
    if not open_calls:
        raise DataError(
            f"messages[{index}] answers the tool call {show(given)}, which is not open there. "
            "Put tool messages right after the assistant message that has the call."
        )
    call = next((call for call in open_calls if call.id == given), None if given else open_calls[0])
    if call is None:
        known = ", ".join(call.id for call in open_calls)
        raise DataError(f"messages[{index}].tool_call_id is {show(given)}; the open calls are {known}.")
    return {"tool_call_id": call.id}


def _call(call: Any, index: int, at: int) -> FunctionCall:
    function: Any = call.get("function", call) if is_object(call) else None
    name: Any = function.get("name") if is_object(function) else None
    if not is_object(call) or not is_object(function) or not isinstance(name, str) or not name:
        where = f"messages[{index}].tool_calls[{at}]"
        raise DataError(f"{where} is {show(call)}; it must have an id and a function with name and arguments.")
    arguments: Any = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    extra = {"extra_content": call["extra_content"]} if "extra_content" in call else {}
    return FunctionCall(str(call.get("id") or f"call_{index}_{at}"), name, text, extra)


def _content(content: Any, index: int) -> Any:
    """Text, or blocks where there are images."""
    if content is None or isinstance(content, str):
        return content or ""
    if not is_list(content):
        raise DataError(f"messages[{index}].content must be text or a list of content blocks, not {show(content)}.")
    blocks = [_block(block, f"messages[{index}].content[{at}]") for at, block in enumerate(content)]
    has_images = any(block["type"] != "text" for block in blocks)
    return blocks if has_images else "".join(block["text"] for block in blocks)


def _block(block: Any, where: str) -> dict[str, Any]:
    if is_object(block) and block.get("type") in ("text", "input_text") and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    src = block_to_image_src(block) if is_object(block) else None
    if src is None:
        raise DataError(f"{where} is {show(block)}, and only text and image blocks can be sent.")
    if not src.startswith(("http://", "https://", "data:")):
        raise DataError(
            f"{where} is an image at {show(src)}, which a server cannot open. "
            "Put the image into the message with image_base64_block, or give its https address."
        )
    image: Any = block.get("image_url")
    detail = {"detail": image["detail"]} if is_object(image) and "detail" in image else {}
    return {"type": "image_url", "image_url": {"url": src, **detail}}
