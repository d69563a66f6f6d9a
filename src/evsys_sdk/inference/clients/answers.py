"""Parse provider responses: completions, and errors with a remedy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ...config.prices import TokenUsage
from ...data.shapes import is_list, is_object
from ...data.types import Message
from ...errors import EvsysAuthError, EvsysError
from ..client import Completion, StopReason
from ..errors import FailureKind, InferenceError
from ..messages import calls_of
from ..transport import HttpAnswer, place

_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_OPTIONAL = {"temperature", "stop", "seed", "max_tokens", "max_completion_tokens"}
"""Fields that some models refuse, and that can be omitted or renamed."""
_NOT_TAKEN = re.compile(
    r"`?(temperature|stop|seed)`?\b.*(deprecated|not support|not permitted|not allowed|may only be set|only be used)",
    re.IGNORECASE,
)
"""Wording for unsupported fields of providers that do not name the field; out-of-range values are worded differently.
"""
_DELAY = re.compile(r"(\d+(?:\.\d+)?)s")
_TOO_LONG = re.compile(
    r"context[ _]length|context[ _]window|maximum context|prompt is too long|input is too long"
    r"|input token count.*exceeds|exceeds the maximum number of tokens",
    re.IGNORECASE,
)
_NO_MONEY = re.compile(r"insufficient[ _]quota|credit balance|exceeded your current quota.*billing", re.IGNORECASE)
_LONGEST_WORDS = 400

_REMEDIES: dict[FailureKind, str] = {
    "rate_limited": "Lower concurrency.",
    "overloaded": "Try again later.",
    "server": "Try again later.",
    "timeout": "Try again later.",
    "connection": "Try again later.",
    "bad_response": "Check that base_url is the address of the API.",
    "bad_request": "Change the request.",
    "not_found": "Check model and base_url.",
    "context_length": "Shorten the conversation, lower max_tokens, or use a model that reads more.",
    "quota": "Top up the account, raise its limit, or use another key.",
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """A provider's error response."""

    message: str = ""
    code: str = ""
    """The provider's error code."""
    kind: FailureKind | None = None
    """Set if the body is more precise than the status."""
    is_auth: bool = False
    """Whether the key is the problem, although the status differs."""
    is_withheld: bool = False
    """Whether the provider refuses this conversation; this counts as an answer, not a failure."""
    retry_after: float | None = None
    field: str | None = None
    """The optional request field that is not supported."""


def read_complaint(body: Any) -> Complaint:
    """Parse `{"error": {"message", "type", "param", "code"}}`, with omissions or as a list."""
    body = body[0] if is_list(body) and body else body
    error: Any = body.get("error", body) if is_object(body) else body
    if not is_object(error):
        return Complaint(error if isinstance(error, str) else "")
    message: Any = error.get("message") or error.get("detail") or ""
    text = message if isinstance(message, str) else json.dumps(message)
    code = str(error.get("code") or error.get("type") or "")
    field = error.get("param") if code in ("unsupported_parameter", "unsupported_value") else None
    if not error.get("param") and (refused := _NOT_TAKEN.search(text)):
        field = refused[1].lower()
    details = json.dumps(error.get("details") or [])
    wait = _DELAY.search(details.partition("retryDelay")[2])
    # A daily quota does not recover within any useful wait.
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


def error_of(answer: HttpAnswer, complaint: Complaint, key_variable: str, url: str) -> EvsysError:
    """The error to raise, with the provider's message and a remedy."""
    status = answer.status
    if status < 300 and complaint.code.isdecimal():
        status = int(complaint.code)  # some gateways answer 200 with an error code in the body
    words = _shorten(complaint.message) or "no reason given"
    code = f", {complaint.code}" if complaint.code and complaint.code not in words else ""
    request = f", request {answer.request_id}" if answer.request_id else ""
    head = f"{place(url)} answered {status}{code}{request}: {words.rstrip('.')}."
    if status in (401, 403) or complaint.is_auth:
        remedy = f"The key came from {key_variable}: check that it is valid and may use this model."
        if not key_variable:
            remedy = "No key was sent: name the variable that holds it with api_key_env."
        return EvsysAuthError(f"{head} {remedy}")
    kind = _kind(status, complaint)
    # The server's explicit hint takes precedence over the usual meaning of its status.
    should_retry = answer.headers.get("x-should-retry")
    return InferenceError(
        f"{head} {_REMEDIES[kind]}",
        kind=kind,
        status=status,
        retry_after=answer.retry_after if answer.retry_after is not None else complaint.retry_after,
        retryable={"true": True, "false": False}.get(should_retry or ""),
        field=complaint.field,
    )


def _kind(status: int, complaint: Complaint) -> FailureKind:
    text = f"{complaint.code} {complaint.message}"
    if complaint.kind:
        return complaint.kind
    # Before the statuses: an empty account often answers 429, and waiting does not help.
    if status < 500 and _NO_MONEY.search(text):
        return "quota"
    if status in (400, 413, 422) and _TOO_LONG.search(text):
        return "context_length"
    by_status: dict[int, FailureKind] = {402: "quota", 404: "not_found", 408: "timeout", 409: "server", 425: "server"}
    by_status |= {429: "rate_limited", 501: "bad_request", 503: "overloaded", 529: "overloaded"}
    if status in by_status:
        return by_status[status]
    if status < 300:
        return "bad_response"  # an error with a success status
    return "not_found" if status < 400 else "bad_request" if status < 500 else "server"


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]}… ({len(line)} characters)"


def read_completion(body: dict[str, Any], index: int) -> Completion:
    """Parse the completion in a body; `index` is its place in the conversation, for ids of calls."""
    choice = body["choices"][0]
    if choice.get("error"):  # some gateways report a broken generation this way
        raise InferenceError(f"the generation was aborted: {json.dumps(choice['error'])}", kind="bad_response")
    reply: dict[str, Any] = choice["message"]
    # `index` makes generated ids unique across turns.
    calls = calls_of(reply, index)
    refusal = reply.get("refusal")
    text = _text(reply.get("content")) or refusal or ""
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [call.to_dict() for call in calls]
    if thoughts := reply.get("reasoning_content") or reply.get("reasoning"):
        message["reasoning_content"] = thoughts
    finish = str(choice.get("finish_reason") or "")
    stop_reason = _STOPS.get(finish, "other")
    if calls and stop_reason in ("stop", "other"):
        stop_reason = "tool_calls"
    if refusal and not reply.get("content"):
        stop_reason = "content_filter"
    if not isinstance(text, str):
        raise TypeError(f"the text is {text!r}")
    usage = _read_usage(body.get("usage"))
    return Completion(text, message, stop_reason, usage, finish=finish, model=str(body.get("model") or ""))


def _text(content: Any) -> str:
    if is_list(content):
        return "".join(block.get("text", "") for block in content if is_object(block) and block.get("type") == "text")
    return content or ""


def _read_usage(usage: Any) -> TokenUsage:
    prompt, sampled = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if prompt is not None and sampled is not None:  # Google counts billed thinking only in the total
        sampled = max(sampled, (_count(usage, "total_tokens") or 0) - prompt)
    return TokenUsage(prompt, sampled, cached_tokens=_count(usage, "prompt_tokens_details", "cached_tokens") or 0)


def _count(usage: Any, *path: str) -> int | None:
    """A token count at a path of a usage report; None if missing."""
    for key in path:
        usage = usage.get(key) if is_object(usage) else None
    return usage if isinstance(usage, int) and usage >= 0 else None
