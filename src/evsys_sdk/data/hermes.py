"""Hermes tool format: definitions listed in the system message, calls and results as tags around JSON.

The mock backend's chat template uses this format, and `renderer_name: chat_template+hermes` adds it to templates
without tools. Models of the Qwen and Hermes families use the same tags; vLLM's parser is named `hermes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .types import Message, ToolDefinition

CALL_TAG = "tool_call"
RESULT_TAG = "tool_response"


def list_tools(tools: Sequence[ToolDefinition]) -> str:
    """The part of a system message that lists the tools."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n\nThese functions can be called; each line is a JSON schema:\n<tools>\n{lines}\n</tools>\n\n"
        f"To call one, write its name and arguments as JSON inside {CALL_TAG} tags:\n"
        f'<{CALL_TAG}>\n{{"name": "<function>", "arguments": {{...}}}}\n</{CALL_TAG}>'
    )


def add_tools(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[Message]:
    """The conversation with the tools in its system message, which is created if missing."""
    if not tools:
        return list(messages)
    if messages and messages[0].get("role") in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{first.get('content') or ''}\n\n{list_tools(tools)}"}, *messages[1:]]
    return [{"role": "system", "content": list_tools(tools)}, *messages]


def write_calls(message: Mapping[str, Any]) -> str:
    """The text of a message with its calls as tags after the content."""
    parts = [str(message.get("content") or "")]
    for call in message.get("tool_calls") or ():
        function = json.dumps(call.get("function", call), ensure_ascii=False)
        parts.append(f"<{CALL_TAG}>\n{function}\n</{CALL_TAG}>")
    return "\n".join(part for part in parts if part)


def as_plain_text(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> list[Message]:
    """The conversation with tools and calls as plain text, for templates without tool support."""
    return [_plain(message) for message in add_tools(messages, tools)]


def _plain(message: Message) -> Message:
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<{RESULT_TAG}>\n{message.get('content') or ''}\n</{RESULT_TAG}>"}
    if not message.get("tool_calls"):
        return message
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": write_calls(message)}
