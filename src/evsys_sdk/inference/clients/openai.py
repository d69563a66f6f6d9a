"""`openai`, `claude` and `gemini`: hosted models, asked by chat completions, which all three providers offer.

A field that a model turns out not to take (some take no temperature) is left out from then on, with a warning.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from ...config.prices import TokenUsage
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ..client import StopReason
from ..errors import InferenceError
from ..messages import calls_of
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
_NOT_TAKEN = re.compile(
    r"`?(temperature|stop|seed)`?\b.*(deprecated|not support|not permitted|not allowed|may only be set|only be used)",
    re.IGNORECASE,
)
"""How providers that name no field say that it is not for this model; a value out of range is worded otherwise."""
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")


class OpenAIClient(HostedClient):
    """Models of OpenAI, and of any server that speaks its chat completions.

        inference: { kind: openai, params: { model: gpt-4.1 } }

    The key is read from `OPENAI_API_KEY`. With `base_url: http://localhost:8000/v1` it asks another server, such as
    vLLM, SGLang or a gateway; that one is sent a key only if `api_key_env` names its variable.
    """

    name: ClassVar[str] = "openai"
    provider: ClassVar[str] = "OpenAI"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    limit_field: ClassVar[str] = "max_completion_tokens"
    """How the provider itself calls the token limit."""

    Config = HostedConfig

    def _url(self) -> str:
        return f"{self.base_url}/chat/completions"

    def _body(self, call: HostedCall) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.config.model, "messages": call.messages}
        optional = {
            self._limit_field(): call.max_tokens,
            "temperature": call.temperature,
            "stop": self._stops(call.stop)[:_MOST_STOPS] or None,
            "seed": call.seed,
        }
        body |= {key: value for key, value in optional.items() if value is not None and key not in self.ignored}
        return body | ({"tools": call.tools} if call.tools else {})

    def _stops(self, stop: tuple[str, ...]) -> list[str]:
        return list(stop)

    def _limit_field(self) -> str:
        chosen = self.limit_field if self.is_provider else "max_tokens"
        # Refused by one name, the limit is sent by the other: without any, an answer could become endless.
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[chosen]
        return other if chosen in self.ignored else chosen

    def _parse(self, body: dict[str, Any], call: HostedCall) -> Parsed:
        choice = body["choices"][0]
        if choice.get("error"):  # some gateways report a broken generation this way
            raise InferenceError(f"the generation broke off: {json.dumps(choice['error'])}", kind="bad_response")
        said: dict[str, Any] = choice["message"]
        # Numbered on from the calls before, so that the id of a call that came without one is unique.
        calls = calls_of(said, len(call.messages))
        refusal = said.get("refusal")
        text = _text(said.get("content")) or refusal or ""
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [one.to_dict() for one in calls]
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
        """`{"error": {"message", "type", "param", "code"}}`; other servers leave some of it out, or send a list."""
        body = body[0] if is_list(body) and body else body
        found: Any = body.get("error", body) if is_object(body) else body
        if not is_object(found):
            return Complaint(found if isinstance(found, str) else "")
        message: Any = found.get("message") or found.get("detail") or ""
        text = message if isinstance(message, str) else json.dumps(message)
        code = str(found.get("code") or found.get("type") or "")
        field = found.get("param") if code in ("unsupported_parameter", "unsupported_value") else None
        if not found.get("param") and (refused := _NOT_TAKEN.search(text)):
            field = refused[1].lower()
        details = json.dumps(found.get("details") or [])
        wait = _DELAY.search(details.partition("retryDelay")[2])
        # An allowance that is given per day does not come back within any wait worth the name.
        kind = "quota" if "PerDay" in details or code == "billing_error" else None
        return Complaint(
            text,
            code,
            kind="context_length" if code == "context_length_exceeded" else kind,
            is_auth="API_KEY_INVALID" in details,  # Google's comes with status 400
            is_withheld=code in ("content_filter", "content_policy_violation"),
            retry_after=float(wait[1]) if wait else None,
            field=field if field in _OPTIONAL else None,
        )


class ClaudeClient(OpenAIClient):
    """Models of Anthropic, by its endpoint for chat completions.

        inference: { kind: claude, params: { model: claude-sonnet-4-6 } }

    The key is read from `ANTHROPIC_API_KEY`. Newer models think before they answer, and that counts against the token
    limit, so give it room.
    """

    name: ClassVar[str] = "claude"
    provider: ClassVar[str] = "Anthropic"
    address: ClassVar[str] = "https://api.anthropic.com/v1"
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    limit_field: ClassVar[str] = "max_tokens"

    def _stops(self, stop: tuple[str, ...]) -> list[str]:
        return [text for text in stop if text.strip()]  # others are ignored there; the answer is cut at them here


class GeminiClient(OpenAIClient):
    """Models of Google, by its endpoint for chat completions.

        inference: { kind: gemini, params: { model: gemini-2.5-flash } }

    The key is read from `GEMINI_API_KEY` or `GOOGLE_API_KEY`. Thinking counts against the token limit, so give it room,
    or set `extra: { reasoning_effort: none }` where the model allows that.
    """

    name: ClassVar[str] = "gemini"
    provider: ClassVar[str] = "Google"
    address: ClassVar[str] = "https://generativelanguage.googleapis.com/v1beta/openai"
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    limit_field: ClassVar[str] = "max_tokens"


def _text(content: Any) -> str:
    if is_list(content):
        return "".join(block.get("text", "") for block in content if is_object(block) and block.get("type") == "text")
    return content or ""


def _usage(usage: Any) -> TokenUsage:
    read, written = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    if read is not None and written is not None:  # Google counts thinking, which it bills, in the total only
        written = max(written, (count(usage, "total_tokens") or 0) - read)
    return TokenUsage(read, written, cached_tokens=count(usage, "prompt_tokens_details", "cached_tokens") or 0)
