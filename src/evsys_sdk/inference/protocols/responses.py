"""OpenAI's responses API, without stored responses: a request contains its whole conversation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from pydantic import Field

from ...data.shapes import is_list
from ...data.types import Message
from ...errors import show
from ..messages import FunctionCall
from .chat_completions import ChatCompletion, describe_score
from .exchange import (
    ChatApiRequest,
    ChatQuery,
    Exchange,
    Reply,
    RequestRefused,
    TokenScore,
    event,
    function_tool,
    mapping,
    read_choice,
    read_format,
    text_at,
)

_TEXTS: Final = ("input_text", "output_text", "reasoning_text", "text")
_CUSTOM_INPUT: Final = "input"
"""The single argument of a tool that takes free text."""


class ResponsesRequest(ChatApiRequest):
    """The body of `POST /v1/responses`."""

    ignored: ClassVar[frozenset[str]] = frozenset((
        "client_metadata", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "reasoning", "service_tier",
        "stream_options", "truncation",
    ))  # fmt: skip

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    top_logprobs: int | None = Field(default=None, ge=0)
    include: list[str] | None = None
    store: bool | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    text: dict[str, Any] | None = None
    user: Any = None
    safety_identifier: Any = None
    background: bool | None = False
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None

    def query(self) -> ChatQuery:
        for name in ("background", "previous_response_id", "conversation", "prompt"):
            if getattr(self, name):
                raise RequestRefused(
                    f"{name} is not supported, because responses are not stored. Send the conversation as input.",
                    param=name,
                    code="unsupported_parameter",
                )
        wants_logprobs = "message.output_text.logprobs" in (self.include or ())
        return self.read_chat(
            *read_choice(self.tool_choice),
            messages=self._conversation(),
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if wants_logprobs or self.top_logprobs else None,
            parallel=self.parallel_tool_calls is not False,
            output_schema=read_format((self.text or {}).get("format"), "text.format"),
        )

    @property
    def custom_tools(self) -> frozenset[str]:
        """Names of tools that take free text instead of JSON."""
        return frozenset(str(tool.get("name")) for tool in self.tools or () if tool.get("type") == "custom")

    def _tool(self, tool: dict[str, Any], where: str) -> dict[str, Any] | None:
        kind = text_at(tool.get("type"), f"{where}.type", "tools")
        if kind == "custom":
            properties = {_CUSTOM_INPUT: {"type": "string"}}
            tool = {**tool, "parameters": {"type": "object", "properties": properties, "required": [_CUSTOM_INPUT]}}
        return function_tool(tool, "parameters", where) if kind in ("function", "custom") else None

    def _conversation(self) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self.instructions}] if self.instructions else []
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        for at, item in enumerate(items):
            self._add(messages, item, f"input[{at}]")
        if not any(message["role"] != "system" for message in messages):
            raise RequestRefused("the input is empty. Give at least one message.", param="input")
        return messages

    def _add(self, messages: list[Message], item: dict[str, Any], where: str) -> None:
        match item.get("type", "message"):
            case "message":
                role = item.get("role")
                if role not in ("system", "developer", "user", "assistant"):
                    raise RequestRefused(f"{where}.role is {show(role)}. Use system, user or assistant.", param="input")
                content = _text(item.get("content"), f"{where}.content")
                if role == "assistant" and messages and _only_thinks(messages[-1]):
                    messages[-1]["content"] = content
                else:
                    messages.append({"role": role, "content": content})
            case "function_call" | "custom_tool_call" as kind:
                if kind == "custom_tool_call":
                    text = json.dumps({_CUSTOM_INPUT: _field(item, "input", where)}, ensure_ascii=False)
                else:
                    text = _field(item, "arguments", where) or "{}"
                function = {"name": _field(item, "name", where), "arguments": text}
                call = {"id": _field(item, "call_id", where), "type": "function", "function": function}
                # Text before a call and parallel calls form one turn.
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1] = {**messages[-1], "tool_calls": [*messages[-1].get("tool_calls", []), call]}
            case "function_call_output" | "custom_tool_call_output":
                output = _text(item.get("output"), f"{where}.output")
                messages.append({"role": "tool", "tool_call_id": _field(item, "call_id", where), "content": output})
            case "reasoning":
                # Encrypted or summarised reasoning is skipped: it is not text of this model.
                if thinking := _text(item.get("content") or [], f"{where}.content"):
                    messages.append({"role": "assistant", "content": "", "reasoning_content": thinking})
            case other:
                raise RequestRefused(
                    f"{where} is of type {show(other)}. Only messages, function calls and their outputs are supported.",
                    param="input",
                )


def _only_thinks(message: Message) -> bool:
    return "reasoning_content" in message and not message["content"] and "tool_calls" not in message


def _field(item: dict[str, Any], key: str, where: str) -> str:
    return text_at(item.get(key), f"{where}.{key}", "input")


def _text(content: Any, where: str) -> str:
    if not is_list(content):
        return text_at(content, where, "input")
    texts: list[str] = []
    for at, part in enumerate(content):
        block = mapping(part, f"{where}[{at}]", "input")
        if block.get("type") not in _TEXTS:
            raise RequestRefused(f"{where}[{at}] is {show(block.get('type'))}; only text is supported.", param="input")
        texts.append(_field(block, "text", f"{where}[{at}]"))
    return "".join(texts)


class OpenAIResponse(Exchange[ChatQuery]):
    """One request of `POST /v1/responses`."""

    path: ClassVar[str] = "/v1/responses"
    prefix: ClassVar[str] = "resp_"

    Request = ResponsesRequest

    def __init__(self, query: ChatQuery, request: Any = None) -> None:
        super().__init__(query, request)
        self._number = 0
        """Sequence number of the next event."""
        self._output: list[dict[str, Any]] = []
        """Completed output items."""
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._thinking_id = f"rs_{secrets.token_hex(12)}"
        self._open = ""
        """Type of the open item."""
        self._scores: list[dict[str, Any]] = []
        self._reply: Reply | None = None

    @classmethod
    def error(cls, status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
        return ChatCompletion.error(status, message, param, code)

    def answer(self, replies: Sequence[Reply], prompt_tokens: int) -> dict[str, Any]:
        [reply] = replies
        output = [self._reasoning(reply.thinking)] if reply.thinking else []
        if reply.text or not reply.calls:
            output.append(self._message(reply.text, [describe_score(score) for score in reply.scores]))
        return self._body([*output, *(self._call(call) for call in reply.calls)], reply, prompt_tokens)

    def start(self, prompt_tokens: int) -> list[bytes]:
        opening = self._body([], None, 0)
        return [
            self._event("response.created", response=opening),
            self._event("response.in_progress", response=opening),
        ]

    def thinking(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        parts: list[bytes] = []
        if not self._open:
            self._open = "reasoning"
            item: dict[str, Any] = {**self._reasoning(""), "status": "in_progress", "content": []}
            parts = [self._event("response.output_item.added", output_index=0, item=item)]
        return [*parts, self._event("response.reasoning_text.delta", **self._place, delta=new)]

    def text(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        parts = [] if self._open == "message" else self._open_message()
        described = [describe_score(score) for score in scores]
        self._scores += described
        return [*parts, self._event("response.output_text.delta", **self._place, delta=new, logprobs=described)]

    def end(self, at: int, reply: Reply) -> list[bytes]:
        self._reply = reply
        parts = self._open_message() if self._open != "message" and not reply.calls else []
        parts += self._close_item()
        for call in reply.calls:
            parts += self._add_call(call)
        return parts

    def finish(self, prompt_tokens: int, sampled_tokens: int) -> list[bytes]:
        body = self._body(self._output, self._reply, prompt_tokens)
        return [self._event(f"response.{body['status']}", response=body)]

    def fail(self, status: int, message: str) -> bytes:
        return self._event("error", code=None, message=message, param=None)

    @property
    def _place(self) -> dict[str, Any]:
        item_id = self._thinking_id if self._open == "reasoning" else self._message_id
        return {"item_id": item_id, "output_index": len(self._output), "content_index": 0}

    def _open_message(self) -> list[bytes]:
        parts = self._close_item()
        self._open = "message"
        item: dict[str, Any] = {**self._message("", []), "status": "in_progress", "content": []}
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            *parts,
            self._event("response.output_item.added", output_index=len(self._output), item=item),
            self._event("response.content_part.added", **self._place, part=part),
        ]

    def _close_item(self) -> list[bytes]:
        if not self._open:
            return []
        (thinking, text), place = self._sent.get(0, ("", "")), self._place
        if self._open == "reasoning":
            item = self._reasoning(thinking)
            parts = [self._event("response.reasoning_text.done", **place, text=thinking)]
        else:
            item = self._message(text, self._scores)
            [part] = item["content"]
            parts = [
                self._event("response.output_text.done", **place, text=text, logprobs=part["logprobs"]),
                self._event("response.content_part.done", **place, part=part),
            ]
        self._open = ""
        self._output.append(item)
        return [*parts, self._event("response.output_item.done", output_index=place["output_index"], item=item)]

    def _add_call(self, call: FunctionCall) -> list[bytes]:
        item, index = self._call(call), len(self._output)
        self._output.append(item)
        is_custom = item["type"] == "custom_tool_call"
        kind, key = ("custom_tool_call_input", "input") if is_custom else ("function_call_arguments", "arguments")
        place = {"item_id": item["id"], "output_index": index}
        opening = {**item, "status": "in_progress", key: ""}
        return [
            self._event("response.output_item.added", output_index=index, item=opening),
            self._event(f"response.{kind}.delta", **place, delta=item[key]),
            self._event(f"response.{kind}.done", **place, name=item["name"], **{key: item[key]}),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _call(self, call: FunctionCall) -> dict[str, Any]:
        common = {"id": f"fc_{secrets.token_hex(12)}", "call_id": call.id, "name": call.name, "status": "completed"}
        if call.name in self._request.custom_tools:
            arguments = call.parse_arguments()
            return {**common, "type": "custom_tool_call", "input": str(arguments.get(_CUSTOM_INPUT, call.arguments))}
        return {**common, "type": "function_call", "arguments": call.arguments}

    def _reasoning(self, text: str) -> dict[str, Any]:
        part = {"type": "reasoning_text", "text": text}
        return {"id": self._thinking_id, "type": "reasoning", "status": "completed", "summary": [], "content": [part]}

    def _message(self, text: str, scores: list[dict[str, Any]]) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}
        return {
            "id": self._message_id,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }

    def _body(self, output: list[dict[str, Any]], reply: Reply | None, prompt_tokens: int) -> dict[str, Any]:
        request, query = self._request, self.query
        cut = reply is not None and reply.reason == "length"
        sampled = 0 if reply is None else reply.tokens
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + sampled,
        }
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress" if reply is None else "incomplete" if cut else "completed",
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": query.parallel,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": query.temperature,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": [tool for tool in request.tools or () if tool.get("type") in ("function", "custom")],
            "top_p": query.top_p,
            "truncation": "disabled",
            "usage": None if reply is None else usage,
            "user": request.user,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)
