"""Anthropic's messages API."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints

from ...data.shapes import is_list, is_object
from ...data.types import Message
from ...errors import show
from ..messages import FunctionCall
from .exchange import (
    ChatApiRequest,
    ChatQuery,
    Exchange,
    Reply,
    RequestRefused,
    TokenScore,
    error_type,
    event,
    function_tool,
    mapping,
    read_format,
    text_at,
)

_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "required"}
_SIGNATURE = "unsigned"
"""Clients drop thinking without a signature; this server accepts any."""
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesRequest(ChatApiRequest):
    """The body of `POST /v1/messages`."""

    ignored: ClassVar[frozenset[str]] = frozenset((
        "betas", "cache_control", "context_management", "diagnostics", "inference_geo", "service_tier", "speed",
        "thinking",
    ))  # fmt: skip

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[Annotated[str, StringConstraints(min_length=1, max_length=1000)]] | None = None
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None

    def query(self) -> ChatQuery:
        choice = self.tool_choice or {"type": "auto"}
        mode = _CHOICES.get(str(choice.get("type")), str(choice.get("type")))
        names = [str(choice.get("name"))] if choice.get("type") == "tool" else None
        form = self.output_format or (self.output_config or {}).get("format")
        return self.read_chat(
            mode,
            names,
            messages=self._conversation(),
            max_tokens=self.max_tokens,
            top_k=self.top_k or -1,
            stops=tuple(self.stop_sequences or ()),
            parallel=not choice.get("disable_parallel_tool_use"),
            output_schema=read_format(form, "output_config.format"),
        )

    def _conversation(self) -> list[Message]:
        messages: list[Message] = []
        if system := _join_text(self.system or "", "system"):
            messages.append({"role": "system", "content": system})
        for at, message in enumerate(self.messages):
            role, content = message.get("role"), message.get("content")
            where = f"messages[{at}]"
            if unknown := sorted(set(message) - {"role", "content"}):
                raise RequestRefused(f"{where} has the key {show(unknown[0])}. Use role and content.", param="messages")
            if role not in ("user", "assistant", "system"):
                raise RequestRefused(f"{where}.role is {show(role)}. Use user or assistant.", param="messages")
            if isinstance(content, str):
                messages.append({"role": role, "content": content})
            elif not is_list(content):
                raise RequestRefused(f"{where}.content is {show(content)}; give text or blocks.", param="messages")
            else:
                blocks = [mapping(block, f"{where}.content[{n}]") for n, block in enumerate(content)]
                messages += _assistant(blocks, where) if role == "assistant" else _user(role, blocks, where)
        if messages[-1]["role"] == "assistant":
            raise RequestRefused(
                "the last message is the assistant's. Continuing an answer is unsupported; end with a user message.",
                param="messages",
            )
        return messages

    def _tool(self, tool: dict[str, Any], where: str) -> dict[str, Any]:
        if tool.get("type") not in (None, "custom"):
            raise RequestRefused(
                f"{where}.type is {show(tool['type'])}. Only tools with a name and an input_schema are supported.",
                param="tools",
            )
        return function_tool(tool, "input_schema", where)


def _assistant(blocks: Sequence[dict[str, Any]], where: str) -> list[Message]:
    thinking, text, calls = "", list[str](), list[dict[str, Any]]()
    for at, block in enumerate(blocks):
        place = f"{where}.content[{at}]"
        match block.get("type"):
            case "text":
                text.append(_field(block, "text", place))
            case "thinking":
                thinking += _field(block, "thinking", place)
            case "redacted_thinking":
                continue  # encrypted, readable only by its provider
            case "tool_use":
                arguments = json.dumps(mapping(block.get("input"), f"{place}.input"), ensure_ascii=False)
                function = {"name": _field(block, "name", place), "arguments": arguments}
                calls.append({"id": _field(block, "id", place), "type": "function", "function": function})
            case _:
                raise _unknown_block(block, place)
    message: Message = {"role": "assistant", "content": "\n\n".join(text)}
    message |= {"reasoning_content": thinking} if thinking else {}
    return [{**message, "tool_calls": calls} if calls else message]


def _user(role: str, blocks: Sequence[dict[str, Any]], where: str) -> list[Message]:
    results, text = list[Message](), list[str]()
    for at, block in enumerate(blocks):
        place = f"{where}.content[{at}]"
        if block.get("type") == "tool_result":
            content = _join_text(block.get("content") or "", f"{place}.content")
            results.append({"role": "tool", "tool_call_id": _field(block, "tool_use_id", place), "content": content})
        else:
            text.append(_join_text([block], f"{where}.content", at))
    messages: list[Message] = [{"role": role, "content": "\n\n".join(text)}] if text or not results else []
    return [*results, *messages]


def _field(block: Mapping[str, Any], key: str, where: str) -> str:
    return text_at(block.get(key), f"{where}.{key}", where.partition("[")[0])


def _join_text(content: Any, where: str, first: int = 0) -> str:
    """Text blocks as one text; block numbers start at `first`."""
    if not is_list(content):
        return text_at(content, where, where.partition("[")[0])
    texts: list[str] = []
    for at, block in enumerate(content, first):
        if not is_object(block) or block.get("type") != "text":
            raise _unknown_block(block, f"{where}[{at}]")
        texts.append(_field(block, "text", f"{where}[{at}]"))
    return "\n\n".join(texts)


def _unknown_block(block: Any, where: str) -> RequestRefused:
    kind: Any = block.get("type") if is_object(block) else block
    return RequestRefused(
        f"{where} is a block of type {show(kind)}. Only text, thinking, tool_use and tool_result are supported.",
        param=where.partition("[")[0],
    )


class AnthropicMessage(Exchange[ChatQuery]):
    """One request of `POST /v1/messages`."""

    path: ClassVar[str] = "/v1/messages"
    prefix: ClassVar[str] = "msg_"

    Request = MessagesRequest

    def __init__(self, query: ChatQuery, request: Any = None) -> None:
        super().__init__(query, request)
        self._blocks = 0
        """Number of content blocks sent so far."""
        self._open = ""
        """Type of the open content block."""
        self._end: dict[str, Any] = {}

    @classmethod
    def error(cls, status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
        kind = {413: "request_too_large", 503: "overloaded_error"}.get(status) or error_type(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def answer(self, replies: Sequence[Reply], prompt_tokens: int) -> dict[str, Any]:
        [reply] = replies
        content: list[dict[str, Any]] = []
        if reply.thinking:
            content.append({"type": "thinking", "thinking": reply.thinking, "signature": _SIGNATURE})
        content += [{"type": "text", "text": reply.text}] if reply.text else []
        content += [{**_tool_use(call), "input": call.parse_arguments()} for call in reply.calls]
        return {**self._message(prompt_tokens, reply.tokens), "content": content, **_outcome(reply)}

    def start(self, prompt_tokens: int) -> list[bytes]:
        return [_event("message_start", message=self._message(prompt_tokens, 0)), _event("ping")]

    def thinking(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        return self._write("thinking", {"type": "thinking_delta", "thinking": new}, signature="")

    def text(self, at: int, new: str, scores: Sequence[TokenScore] = ()) -> list[bytes]:
        return self._write("text", {"type": "text_delta", "text": new})

    def end(self, at: int, reply: Reply) -> list[bytes]:
        parts = self._close_block()
        for call in reply.calls:
            index, self._blocks = self._blocks, self._blocks + 1
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call.parse_arguments(), ensure_ascii=False)}
            parts += [
                _event("content_block_start", index=index, content_block={**_tool_use(call), "input": {}}),
                _event("content_block_delta", index=index, delta=delta),
                _event("content_block_stop", index=index),
            ]
        self._end = _outcome(reply)
        return parts

    def finish(self, prompt_tokens: int, sampled_tokens: int) -> list[bytes]:
        usage = _usage(prompt_tokens, sampled_tokens)
        return [_event("message_delta", delta=self._end, usage=usage), _event("message_stop")]

    def fail(self, status: int, message: str) -> bytes:
        return event(self.error(status, message), "error")

    def _write(self, kind: str, delta: dict[str, Any], **more: str) -> list[bytes]:
        parts: list[bytes] = []
        if self._open != kind:
            parts = self._close_block()
            self._open = kind
            block = {"type": kind, kind: "", **more}
            parts.append(_event("content_block_start", index=self._blocks, content_block=block))
        return [*parts, _event("content_block_delta", index=self._blocks, delta=delta)]

    def _close_block(self) -> list[bytes]:
        if not self._open:
            return []
        index, self._blocks = self._blocks, self._blocks + 1
        signed = {"type": "signature_delta", "signature": _SIGNATURE}
        parts = [_event("content_block_delta", index=index, delta=signed)] if self._open == "thinking" else []
        self._open = ""
        return [*parts, _event("content_block_stop", index=index)]

    def _message(self, prompt_tokens: int, sampled_tokens: int) -> dict[str, Any]:
        head: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
        }
        return {**head, "stop_reason": None, "stop_sequence": None, "usage": _usage(prompt_tokens, sampled_tokens)}


def _tool_use(call: FunctionCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id or f"toolu_{secrets.token_hex(12)}", "name": call.name}


def _outcome(reply: Reply) -> dict[str, Any]:
    if reply.reason == "stop" and reply.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop}
    return {"stop_reason": _REASONS[reply.reason], "stop_sequence": None}


def _usage(prompt: int, sampled: int) -> dict[str, Any]:
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": prompt, "output_tokens": sampled, **cached}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
