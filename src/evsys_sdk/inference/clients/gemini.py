"""`gemini`: `generateContent` of Google's Gemini API.

    inference: { kind: gemini, params: { model: gemini-2.5-flash } }

The key is read from `GEMINI_API_KEY` or `GOOGLE_API_KEY`. Thinking counts against the token limit, so give it room, or
set `extra: { generationConfig: { thinkingConfig: { thinkingBudget: 0 } } }` where the model allows that.

What the model signs (`thoughtSignature`) has to be sent back with the call it belongs to; it travels in `extra_content`
of that tool call, as in Google's own OpenAI-style interface.
"""

from __future__ import annotations

import json
import mimetypes
import re
from typing import Any, ClassVar

from pydantic import Field

from ...config.prices import TokenUsage
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ..client import StopReason
from ..messages import ChatTurn, Part, TextPart, ToolCall, join_turns, tool_call_message
from .hosted import HostedCall, HostedClient, HostedConfig, Parsed, count
from .refusals import Complaint

# The API takes no more of them; at the others the answer is cut here.
_MOST_STOPS = 5
_OUR_ID = "evsys_call_"
"""Begins the ids that we give to calls, because older models give none."""
_STOPS: dict[str, StopReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "LANGUAGE": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
}
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")
_VERSION = "v1beta"


class GeminiClient(HostedClient):
    """Models of Google."""

    name: ClassVar[str] = "gemini"
    provider: ClassVar[str] = "Google"
    address: ClassVar[str] = f"https://generativelanguage.googleapis.com/{_VERSION}"
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

    class Config(HostedConfig):
        """Params of `inference.kind: gemini`."""

        api_version: str = Field(default=_VERSION, pattern=r"^v\d[a-z0-9]*$")
        """Version of Google's API, as it stands in the address; with a `base_url`, that address has it."""

    config: Config

    def _url(self) -> str:
        base = self.base_url
        if self.is_provider:
            base = base.replace(f"/{_VERSION}", f"/{self.config.api_version}")
        return f"{base}/models/{self.config.model.removeprefix('models/')}:generateContent"

    def _headers(self, key: str | None) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def _body(self, call: HostedCall) -> dict[str, Any]:
        system = [{"text": turn.text} for turn in call.turns if turn.role in ("system", "developer")]
        settings = {
            "maxOutputTokens": call.max_tokens,
            "temperature": call.temperature,
            "stopSequences": list(call.stop[:_MOST_STOPS]) or None,
            "seed": call.seed,
        }
        body: dict[str, Any] = {
            "contents": join_turns(call.turns, _parts, model="Gemini", speaker="model", content="parts"),
            "generationConfig": {key: value for key, value in settings.items() if value is not None},
        }
        if system:
            body["systemInstruction"] = {"parts": system}
        if call.tools:
            functions = [
                {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
                for tool in call.tools
            ]
            body["tools"] = [{"functionDeclarations": functions}]
        return body

    def _parse(self, body: dict[str, Any], call: HostedCall) -> Parsed:
        usage, model = _usage(body.get("usageMetadata")), str(body.get("modelVersion") or "")
        feedback = body.get("promptFeedback")
        blocked = feedback.get("blockReason") if is_object(feedback) else None
        if blocked and not body.get("candidates"):
            return Parsed("", {"role": "assistant", "content": ""}, "content_filter", blocked, usage, model)
        candidate = body["candidates"][0]
        finish = str(candidate.get("finishReason") or "")
        content: Any = candidate.get("content")
        parts: list[dict[str, Any]] = (content.get("parts") if is_object(content) else None) or []
        if not parts and finish in ("", "FINISH_REASON_UNSPECIFIED"):
            raise LookupError("the candidate has neither content nor a reason to have none")
        # Numbered on from the calls before, so that ids of our own are unique in a conversation.
        earlier = sum(len(turn.calls) for turn in call.turns)
        text, message = _message(parts, earlier)
        stop_reason = _STOPS.get(finish, "other")
        # The API has no reason of its own for calls; it says STOP as after any answer.
        if "tool_calls" in message and stop_reason == "stop":
            stop_reason = "tool_calls"
        return Parsed(text, message, stop_reason, finish, usage, model)

    def _complaint(self, body: Any) -> Complaint:
        """`{"error": {"code", "message", "status", "details"}}`, sometimes as the only item of a list."""
        body = body[0] if is_list(body) and body else body
        found: Any = body.get("error") if is_object(body) else None
        if not is_object(found):
            return Complaint()
        details = [detail for detail in found.get("details") or () if is_object(detail)]
        reasons = {detail.get("reason") for detail in details}
        waits = [_DELAY.fullmatch(str(detail.get("retryDelay", ""))) for detail in details]
        quotas = [str(item.get("quotaId")) for detail in details for item in detail.get("violations") or ()]
        return Complaint(
            str(found.get("message") or ""),
            str(found.get("status") or ""),
            # An allowance that is given per day does not come back within any wait worth the name.
            kind="quota" if any("PerDay" in quota for quota in quotas) else None,
            is_auth="API_KEY_INVALID" in reasons,  # comes with status 400
            retry_after=next((float(wait[1]) for wait in waits if wait), None),
        )


def _parts(turn: ChatTurn) -> list[dict[str, Any]]:
    if turn.role == "tool":
        answer = {"name": turn.call_name, "response": {"output": turn.text}, **_id(turn.call_id)}
        images = [_part(part) for part in turn.parts if not isinstance(part, TextPart)]
        return [{"functionResponse": answer}, *images]
    parts = [_part(part) for part in turn.parts if not isinstance(part, TextPart) or part.text]
    if turn.role == "assistant" and parts and "text" in parts[-1]:
        parts[-1] |= _signature_of(turn.message)
    calls = [
        {"functionCall": {"name": call.name, "args": call.parse_arguments(), **_id(call.id)}}
        | _signature_of(call.extra)
        for call in turn.calls
    ]
    return [*parts, *calls]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"text": part.text}
    if part.url:
        kind = mimetypes.guess_type(part.url.partition("?")[0])[0]
        return {"fileData": {"fileUri": part.url} | ({"mimeType": kind} if kind else {})}
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


def _message(parts: list[dict[str, Any]], earlier_calls: int) -> tuple[str, Message]:
    spoken = [part for part in parts if "text" in part and not part.get("thought")]
    text = "".join(part["text"] for part in spoken)
    thoughts = "".join(part["text"] for part in parts if "text" in part and part.get("thought"))
    wanted = [part for part in parts if "functionCall" in part]
    calls = [_call(part, earlier_calls + number) for number, part in enumerate(wanted)]
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = tool_call_message(calls)
    if thoughts:
        message["reasoning_content"] = thoughts
    if spoken:
        message |= _extra(spoken[-1])
    return text, message


def _call(part: dict[str, Any], number: int) -> ToolCall:
    wanted = part["functionCall"]
    arguments = json.dumps(wanted.get("args") or {}, ensure_ascii=False)
    return ToolCall(wanted.get("id") or f"{_OUR_ID}{number}", wanted["name"], arguments, _extra(part))


def _extra(part: dict[str, Any]) -> dict[str, Any]:
    signature = part.get("thoughtSignature")
    return {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}


def _signature_of(carrier: Any) -> dict[str, Any]:
    extra = carrier.get("extra_content")
    google = extra.get("google") if is_object(extra) else None
    signature = google.get("thought_signature") if is_object(google) else None
    return {"thoughtSignature": signature} if signature else {}


def _id(call_id: str) -> dict[str, str]:
    # What we have made up ourselves means nothing to the server.
    return {} if call_id.startswith(_OUR_ID) else {"id": call_id}


def _usage(usage: Any) -> TokenUsage:
    """Thinking is counted apart from the candidates and costs the same; what is cached is part of the prompt."""
    read, answer = count(usage, "promptTokenCount"), count(usage, "candidatesTokenCount") or 0
    if read is None:
        return TokenUsage()
    return TokenUsage(
        input_tokens=read + (count(usage, "toolUsePromptTokenCount") or 0),
        output_tokens=answer + (count(usage, "thoughtsTokenCount") or 0),
        cached_tokens=count(usage, "cachedContentTokenCount") or 0,
    )
