"""`openai_chat`: fine-tuning files in OpenAI's format -> conversations.

Tool definitions go to `metadata.tools`. The older `function_call` and `role: function` become tool calls and tool
results; `weight` stays on its message.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...errors import DataError, show
from ...protocols import Row
from ..chat import messages_of
from ..shapes import checked_mapping, checked_messages, is_list
from ..transform import NoParams, RowTransform
from ..types import Message


class OpenAIChat(RowTransform[NoParams]):
    """Reads OpenAI fine-tuning rows, with tools, older function calls and weights."""

    name: ClassVar[str] = "openai_chat"
    Config = NoParams

    def row(self, row: Row) -> Row:
        """The row as a conversation."""
        messages = checked_messages(_modern(messages_of(row)))
        metadata = checked_mapping(row.get("metadata"), "metadata")
        tools = _tools(row)
        if tools:
            metadata = {**metadata, "tools": tools}
        others = {key: value for key, value in row.items() if key not in ("messages", "tools", "functions", "metadata")}
        return {"messages": messages, "metadata": metadata, **others}


def _modern(messages: list[Message]) -> list[Message]:
    """The messages with tool calls in place of function calls."""
    modern: list[Message] = []
    call_id = ""
    for index, message in enumerate(messages):
        weight = message.get("weight", 1)
        if weight not in (0, 1):
            raise DataError(f"messages[{index}].weight must be 0 or 1, not {show(weight)}.")
        call = message.get("function_call")
        if call:
            call_id = f"call_{index}"
            rest = {key: value for key, value in message.items() if key != "function_call"}
            calls = [{"id": call_id, "type": "function", "function": call}]
            message = {"content": None, **rest, "tool_calls": calls}
        elif message.get("role") == "function":
            if not call_id:
                raise DataError(f"messages[{index}] is the result of a function that no earlier message calls.")
            message = {**message, "role": "tool", "tool_call_id": call_id}
        modern.append(message)
    return modern


def _tools(row: Row) -> list[Any]:
    tools: Any = row.get("tools") or []
    functions: Any = row.get("functions") or []
    if not is_list(tools) or not is_list(functions):
        raise DataError(f"'tools' and 'functions' must be lists, not {show(functions if is_list(tools) else tools)}.")
    return [*tools, *({"type": "function", "function": function} for function in functions)]
