"""Validation of OpenAI-style conversations before they are sent to a server.

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
    """JSON text as the model wrote it; may be invalid."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that the provider needs back with the call."""

    def parse_arguments(self) -> dict[str, Any]:
        """The arguments as an object; invalid JSON is kept under `text`."""
        try:
            value: Any = json.loads(self.arguments or "{}")
        except ValueError:
            value = self.arguments
        return value if is_object(value) else {"text": self.arguments}

    def to_dict(self) -> dict[str, Any]:
        """An item of `tool_calls`."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function, **self.extra}


def check_conversation(messages: Sequence[Message]) -> list[Message]:
    """The conversation in the form of chat completions; an error names the invalid message.

    A tool message without `tool_call_id` answers the first open call. Without an open call, as with agents that parse
    calls from text, it becomes a user message.
    """
    checked: list[Message] = []
    open_calls: list[FunctionCall] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            raise DataError(f"messages[{index}].role is {show(role)}. Use {', '.join(ROLES)}.")
        if role != "tool" and open_calls:
            ids = ", ".join(f"{call.id} ({call.name})" for call in open_calls)
            raise DataError(
                f"messages[{index}] comes before the tool calls {ids} are answered. Add one tool message for each of "
                "them with its tool_call_id."
            )
        request_message: Message = {"role": role, "content": _content(message.get("content"), index)}
        if role == "tool":
            request_message |= _answered(message, open_calls, index)
            open_calls = [call for call in open_calls if call.id != request_message.get("tool_call_id")]
        elif isinstance(name := message.get("name"), str):
            request_message["name"] = name
        if calls := calls_of(message, index):
            open_calls, request_message["tool_calls"] = calls, [call.to_dict() for call in calls]
        checked.append(request_message)
    if not checked:
        raise DataError("the conversation is empty. Add at least one message.")
    return checked


def check_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Tool definitions in OpenAI's form, from definitions with or without the `function` envelope."""
    definitions: list[dict[str, Any]] = []
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
        definitions.append({"type": "function", "function": described})
    return definitions


def calls_of(message: Message, index: int = 0) -> list[FunctionCall]:
    """The calls of a message; `index` is its number in the conversation, for error messages."""
    calls = message.get("tool_calls")
    return [_call(call, index, at) for at, call in enumerate(calls if is_list(calls) else [])]


def _answered(message: Message, open_calls: list[FunctionCall], index: int) -> Message:
    """The fields of a tool message that name the call it answers."""
    call_id = str(message.get("tool_call_id") or "")
    if not open_calls and not call_id:
        return {"role": "user"}
    if not open_calls:
        raise DataError(
            f"messages[{index}] answers the tool call {show(call_id)}, which is not open. "
            "Put tool messages right after the assistant message that has the call."
        )
    call = next((call for call in open_calls if call.id == call_id), None if call_id else open_calls[0])
    if call is None:
        known = ", ".join(call.id for call in open_calls)
        raise DataError(f"messages[{index}].tool_call_id is {show(call_id)}; the open calls are {known}.")
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
        raise DataError(f"{where} is {show(block)}. Only text and image blocks can be sent.")
    if not src.startswith(("http://", "https://", "data:")):
        raise DataError(
            f"{where} is an image at {show(src)}, which a server cannot open. "
            "Embed it with image_base64_block, or use its https address."
        )
    image: Any = block.get("image_url")
    detail = {"detail": image["detail"]} if is_object(image) and "detail" in image else {}
    return {"type": "image_url", "image_url": {"url": src, **detail}}
