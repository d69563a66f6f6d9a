"""A multi-turn agent that lets the policy call Python functions.

Tools are rendered in the model's own format; an answer without a call ends the conversation. An invalid call is
answered with the error, so that the policy can learn from it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

from pydantic import Field, TypeAdapter

from ...config.base import Strict
from ...data.types import HarborTask
from ...errors import ConfigError, DataError, Problem
from ...inference.messages import FunctionCall, calls_of
from ..environment import Environment
from ..harness import import_object
from ..rollout import Message, Policy, TruncatedError, opening, text_of

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class ToolsAgent:
    """Lets the policy call Python functions over several turns."""

    name: ClassVar[str] = "tools"

    class Config(Strict):
        """Parameters of `tools`."""

        tools: list[str] = Field(min_length=1)
        """Functions as `package.module:function`; signature and docstring become the schema."""
        max_turns: int = Field(default=8, ge=1)
        """Maximum number of the policy's turns."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._tools = {tool.__name__: tool for tool in map(_import_tool, self.cfg.tools)}
        self._schemas = [tool_schema(tool) for tool in self._tools.values()]

    async def run(self, task: HarborTask, policy: Policy, environment: Environment) -> list[Message]:
        messages = opening(task)
        for _ in range(self.cfg.max_turns):
            turn = await policy.act(messages, tools=self._schemas)
            messages.append(turn.message)
            calls = tool_calls(turn.message, len(messages) - 1)
            if not calls:
                return messages
            for call in calls:
                answer = {"role": "tool", "content": await self._call(call)}
                messages.append(answer | ({"tool_call_id": call.id} if call.id else {}))
        raise TruncatedError(f"the policy gave no final answer within {self.cfg.max_turns} turns")

    async def _call(self, call: FunctionCall) -> str:
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool called {call.name!r}; there are {', '.join(self._tools)}"
        try:
            result = tool(**call.parse_arguments())
            return str(await result if inspect.isawaitable(result) else result)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a tool's error is part of the conversation
            return f"error: {type(error).__name__}: {error}"


def tool_calls(message: Message, index: int = 0) -> list[FunctionCall]:
    """The calls in an answer: structured ones, else those in its text.

    `index` is the number of the message in its conversation.
    """
    return calls_of(message, index) or [_read_written(text) for text in _CALL.findall(text_of(message))]


def _read_written(text: str) -> FunctionCall:
    """A call without an id; unparsable text becomes the name of an unknown tool."""
    try:
        [call] = calls_of({"tool_calls": [json.loads(text)]})
    except (ValueError, RecursionError, DataError):  # ValueError also for numbers beyond Python's limit
        return FunctionCall("", text, "")
    return FunctionCall("", call.name, call.arguments)


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """The OpenAI-style schema of a function, from its signature and docstring."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    properties = {name: TypeAdapter(hints.get(name, Any)).json_schema() for name in parameters}
    required = [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    return {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": inspect.getdoc(function) or "",
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def _import_tool(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    try:
        tool = import_object(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        hint = "Write it as package.module:function."
        raise ConfigError(Problem(f"cannot import the tool: {error}", path="tools", value=path, hint=hint)) from error
    if not callable(tool):
        hint = "A tool is a Python function with typed parameters and a docstring."
        raise ConfigError(Problem("this is not a function", path="tools", value=path, hint=hint))
    return tool
