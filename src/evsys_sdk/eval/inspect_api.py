"""An inspect_ai `ModelAPI` over one of our models: converts messages, tools and outputs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

type Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""`{messages, tools, config}` -> `{message, stop_reason, input_tokens, output_tokens}`."""


@lru_cache(maxsize=1)
def policy_api() -> Any:
    """The `ModelAPI` subclass, defined on first use because its base needs inspect_ai."""
    library = import_module("inspect_ai.model")
    base: Any = library.ModelAPI

    class PolicyAPI(base):
        """Sends requests to one of our models."""

        def __init__(self, model_name: str, *, ask: Ask, **options: Any) -> None:
            super().__init__(model_name, **options)  # pyright: ignore[reportUnknownMemberType]
            self._request = ask

        async def generate(self, input: list[Any], tools: list[Any], tool_choice: Any, config: Any) -> Any:
            if isinstance(tool_choice, str) and tool_choice == "none":
                tools = []
            elif tool_choice not in ("auto", None):
                raise RuntimeError(f"tool_choice {tool_choice!r} is not supported: the model chooses. Use 'auto'.")
            answer = await self._request(
                {
                    "messages": [read_message(message) for message in input],
                    "tools": [_tool(tool) for tool in tools],
                    "config": config.model_dump(mode="json", exclude_none=True),
                }
            )
            return _output(library, self.model_name, answer)

    return PolicyAPI


def read_message(message: Any) -> dict[str, Any]:
    """Convert an inspect_ai message to ours."""
    if not isinstance(message.content, str) and any(part.type not in ("text", "reasoning") for part in message.content):
        raise RuntimeError("the conversation has images or other media, but the model reads text only. Use text tasks.")
    converted: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.role == "tool":
        converted |= {"tool_call_id": message.tool_call_id or "", "name": message.function or ""}
        if message.error is not None:
            converted["content"] = f"{message.error.message}\n{message.text}".strip()
    if calls := getattr(message, "tool_calls", None):
        converted["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function, "arguments": call.arguments}}
            for call in calls
        ]
    return converted


def _tool(tool: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": tool.model_dump(mode="json", include={"name", "description", "parameters"}, exclude_none=True),
    }


def _output(library: Any, name: str, answer: dict[str, Any]) -> Any:
    message = answer["message"]
    calls = [_call(at, call) for at, call in enumerate(message.get("tool_calls") or ())]
    stop = "max_tokens" if answer["stop_reason"] == "length" else "tool_calls" if calls else "stop"
    reply = library.ChatMessageAssistant(
        content=message.get("content") or "", tool_calls=calls or None, model=name, source="generate"
    )
    usage = {key: int(answer.get(key) or 0) for key in ("input_tokens", "output_tokens")}
    return library.ModelOutput(
        model=name,
        choices=[library.ChatCompletionChoice(message=reply, stop_reason=stop)],
        usage=library.ModelUsage(**usage, total_tokens=sum(usage.values())),
    )


def _call(at: int, call: dict[str, Any]) -> Any:
    function = call["function"]
    arguments, problem = function["arguments"], None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            arguments, problem = {}, f"the arguments are not JSON: {error}"
    kind = import_module("inspect_ai.tool").ToolCall
    return kind(
        id=str(call.get("id") or f"call_{at}"), function=function["name"], arguments=arguments, parse_error=problem
    )
