"""`openai`: OpenAI's chat completions, or any server that speaks them.

    inference: { kind: openai, params: { model: gpt-4.1 } }

The key is read from `OPENAI_API_KEY`. With `base_url: http://localhost:8000/v1` it asks another server, such as vLLM,
SGLang or a gateway; that one is sent a key only if `api_key_env` names its variable. A field that a model turns out
not to take (some take no temperature) is left out from then on, with a warning.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from ...config.prices import TokenUsage
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ..client import StopReason
from ..errors import InferenceError
from ..messages import ChatTurn, ImagePart, Part, TextPart, ToolCall, tool_call_message
from .hosted import HostedCall, HostedClient, HostedConfig, Parsed, count
from .refusals import Complaint

# The API takes no more of them; at the others the answer is cut here.
_MOST_STOPS = 4
_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_OPTIONAL = {"temperature", "stop", "seed", "max_tokens", "max_completion_tokens"}
"""Fields that some models refuse, and that can be left out or written otherwise."""


class OpenAIClient(HostedClient):
    """Models of OpenAI, and of any server that speaks its chat completions."""

    name: ClassVar[str] = "openai"
    provider: ClassVar[str] = "OpenAI"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)

    class Config(HostedConfig):
        """Params of `inference.kind: openai`."""

        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
        """How the request calls its token limit; by default the newer name for OpenAI and the older for others."""

    config: Config

    def _url(self) -> str:
        return f"{self.base_url}/chat/completions"

    def _headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def _body(self, call: HostedCall) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.config.model, "messages": [self._message(turn) for turn in call.turns]}
        optional = {
            self._limit_field(): call.max_tokens,
            "temperature": call.temperature,
            "stop": list(call.stop[:_MOST_STOPS]) or None,
            "seed": call.seed,
        }
        body |= {key: value for key, value in optional.items() if value is not None and key not in self.ignored}
        if call.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in call.tools
            ]
        return body

    def _limit_field(self) -> str:
        usual = "max_completion_tokens" if self.is_provider else "max_tokens"
        chosen = self.config.max_tokens_field or usual
        # Refused by one name, the limit is sent by the other: without any, an answer could become endless.
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[chosen]
        return other if chosen in self.ignored else chosen

    def _message(self, turn: ChatTurn) -> Message:
        has_images = any(isinstance(part, ImagePart) for part in turn.parts)
        content = [_block(part, turn) for part in turn.parts] if has_images else turn.text
        message: Message = {"role": turn.role, "content": content}
        if turn.calls:
            message["tool_calls"] = [
                # Only a server that sent more than OpenAI does understands more.
                {key: value for key, value in call.items() if key != "extra_content" or not self.is_provider}
                for call in tool_call_message(turn.calls)
            ]
        if turn.role == "tool":
            message["tool_call_id"] = turn.call_id
        elif isinstance(name := turn.message.get("name"), str):
            message["name"] = name
        return message

    def _parse(self, body: dict[str, Any], call: HostedCall) -> Parsed:
        choice = body["choices"][0]
        if choice.get("error"):  # some gateways report a broken generation this way
            raise InferenceError(f"the generation broke off: {json.dumps(choice['error'])}", kind="bad_response")
        said: dict[str, Any] = choice["message"]
        calls = [_tool_call(item, number) for number, item in enumerate(said.get("tool_calls") or ())]
        refusal = said.get("refusal")
        text = _text(said.get("content")) or refusal or ""
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = tool_call_message(calls)
        if thoughts := said.get("reasoning_content") or said.get("reasoning"):
            message["reasoning_content"] = thoughts
        finish = str(choice.get("finish_reason") or "")
        stop_reason = _STOPS.get(finish, "other")
        if calls and stop_reason in ("stop", "other"):
            stop_reason = "tool_calls"
        if refusal and not said.get("content"):
            stop_reason = "content_filter"
        usage, model, tier = _usage(body.get("usage")), body.get("model"), body.get("service_tier")
        return Parsed(text, message, stop_reason, finish, usage, str(model or ""), str(tier or ""))

    def _complaint(self, body: Any) -> Complaint:
        """`{"error": {"message", "type", "param", "code"}}`; other servers leave some of it out."""
        found: Any = body.get("error", body) if is_object(body) else body
        if not is_object(found):
            return Complaint(found if isinstance(found, str) else "")
        code = str(found.get("code") or found.get("type") or "")
        message: Any = found.get("message") or found.get("detail") or ""
        field = found.get("param") if code in ("unsupported_parameter", "unsupported_value") else None
        return Complaint(
            message if isinstance(message, str) else json.dumps(message),
            code,
            kind="context_length" if code == "context_length_exceeded" else None,
            is_withheld=code in ("content_filter", "content_policy_violation"),
            field=field if field in _OPTIONAL else None,
        )


def _block(part: Part, turn: ChatTurn) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    image = {"url": part.src}
    return {"type": "image_url", "image_url": image | _detail(part, turn)}


def _detail(part: ImagePart, turn: ChatTurn) -> dict[str, Any]:
    """How closely to look at an image, where the message says so."""
    content: Any = turn.message.get("content")
    for block in content if is_list(content) else ():
        image = block.get("image_url") if is_object(block) else None
        if is_object(image) and image.get("url") == part.src and "detail" in image:
            return {"detail": image["detail"]}
    return {}


def _tool_call(item: dict[str, Any], number: int) -> ToolCall:
    function = item["function"]
    arguments = function.get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    extra = {"extra_content": item["extra_content"]} if "extra_content" in item else {}
    return ToolCall(str(item.get("id") or f"call_{number}"), function["name"], text, extra)


def _text(content: Any) -> str:
    if is_list(content):
        return "".join(block.get("text", "") for block in content if is_object(block) and block.get("type") == "text")
    return content or ""


def _usage(usage: Any) -> TokenUsage:
    cached = count(usage, "prompt_tokens_details", "cached_tokens") or 0
    return TokenUsage(count(usage, "prompt_tokens"), count(usage, "completion_tokens"), cached_tokens=cached)
