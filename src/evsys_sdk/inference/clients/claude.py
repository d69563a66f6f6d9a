"""`claude`: Anthropic's Messages API.

    inference: { kind: claude, params: { model: claude-sonnet-4-6 } }

The key is read from `ANTHROPIC_API_KEY`. The API takes no seed. Many models take no temperature: they are asked without
one, with a warning. Newer models think before they answer, and that counts against the token limit, so give it room.
Thinking stays in the message as `thinking_blocks`, because it has to be sent back unchanged while tools are called.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from ...config.prices import TokenUsage
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ..client import StopReason
from ..messages import ChatTurn, Part, TextPart, ToolCall, join_turns, tool_call_message
from .hosted import HostedCall, HostedClient, HostedConfig, Parsed, count
from .refusals import Complaint

_VERSION = "2023-06-01"
_STOPS: dict[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_NOT_TAKEN = re.compile(
    r"`?(temperature|stop_sequences)`?\b.*(deprecated|support|not permitted|not allowed|may only be set|only be used)",
    re.IGNORECASE,
)
"""How the API says that a field is not for this model or version; a value out of range is worded otherwise."""

type Block = dict[str, Any]


class ClaudeClient(HostedClient):
    """Models of Anthropic."""

    name: ClassVar[str] = "claude"
    provider: ClassVar[str] = "Anthropic"
    address: ClassVar[str] = "https://api.anthropic.com"
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)

    class Config(HostedConfig):
        """Params of `inference.kind: claude`."""

        api_version: str = _VERSION
        """Version of the API, sent as `anthropic-version`."""
        betas: list[str] = []
        """Features that have to be asked for, sent as `anthropic-beta`."""

    config: Config

    def _url(self) -> str:
        return f"{self.base_url}/v1/messages"

    def _headers(self, key: str | None) -> dict[str, str]:
        headers = {"anthropic-version": self.config.api_version}
        headers |= {"anthropic-beta": ",".join(self.config.betas)} if self.config.betas else {}
        return headers | ({"x-api-key": key} if key else {})

    def _body(self, call: HostedCall) -> dict[str, Any]:
        system = "\n\n".join(turn.text for turn in call.turns if turn.role in ("system", "developer"))
        # The API refuses stop sequences of blanks only; the answer is cut at them here.
        stops = [stop for stop in call.stop if stop.strip()]
        body: dict[str, Any] = {
            "model": self.config.model,
            "max_tokens": call.max_tokens,
            "messages": join_turns(call.turns, _blocks, model="Claude"),
        }
        optional = {"system": system or None, "temperature": call.temperature, "stop_sequences": stops or None}
        body |= {key: value for key, value in optional.items() if value is not None and key not in self.ignored}
        if call.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in call.tools
            ]
        return body

    def _parse(self, body: dict[str, Any], call: HostedCall) -> Parsed:
        blocks: list[Block] = body["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [
            ToolCall(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False), {})
            for block in blocks
            if block["type"] == "tool_use"
        ]
        thoughts = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = tool_call_message(calls)
        if thoughts:
            message["thinking_blocks"] = thoughts
        finish = str(body["stop_reason"] or "")
        used: Any = body.get("usage")
        tier = str(used.get("service_tier") or "") if is_object(used) else ""
        stop_reason = _STOPS.get(finish, "other")
        return Parsed(text, message, stop_reason, finish, _usage(used), str(body.get("model") or ""), tier)

    def _complaint(self, body: Any) -> Complaint:
        """`{"type": "error", "error": {"type", "message"}}`."""
        found: Any = body.get("error") if is_object(body) else None
        if not is_object(found):
            return Complaint(found if isinstance(found, str) else "")
        message, code = str(found.get("message") or ""), str(found.get("type") or "")
        refused = _NOT_TAKEN.search(message) if code == "invalid_request_error" else None
        return Complaint(
            message,
            code,
            kind="quota" if code == "billing_error" else None,
            is_auth=code in ("authentication_error", "permission_error"),
            field=refused[1].lower() if refused else None,
        )


def _blocks(turn: ChatTurn) -> list[Block]:
    parts = [_block(part) for part in turn.parts if not isinstance(part, TextPart) or part.text]
    if turn.role == "tool":
        return [{"type": "tool_result", "tool_use_id": turn.call_id, "content": parts}]
    thoughts = turn.message.get("thinking_blocks")
    uses = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.parse_arguments()} for call in turn.calls
    ]
    # Thinking first, as it was sent: the API refuses it anywhere else.
    return [*(thoughts if is_list(thoughts) and turn.role == "assistant" else []), *parts, *uses]


def _block(part: Part) -> Block:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    inside = {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "image", "source": {"type": "url", "url": part.url} if part.url else inside}


def _usage(usage: Any) -> TokenUsage:
    """Anthropic counts what was not cached, what was written to a cache and what was read from it apart."""
    plain, read = count(usage, "input_tokens"), count(usage, "cache_read_input_tokens") or 0
    written = count(usage, "cache_creation_input_tokens") or 0
    hour = count(usage, "cache_creation", "ephemeral_1h_input_tokens") or 0
    return TokenUsage(
        input_tokens=None if plain is None else plain + read + written,
        output_tokens=count(usage, "output_tokens"),
        cached_tokens=read,
        # What is kept for an hour has its own price, and is part of what was written.
        cache_write_tokens=written - hour,
        cache_write_1h_tokens=hour,
    )
