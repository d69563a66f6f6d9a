"""What providers send back: completions, and refusals as the error that says what to do about them."""

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
"""Fields that some models refuse, and that can be left out or written otherwise."""
_NOT_TAKEN = re.compile(
    r"`?(temperature|stop|seed)`?\b.*(deprecated|not support|not permitted|not allowed|may only be set|only be used)",
    re.IGNORECASE,
)
"""How providers that name no field say that it is not for this model; a value out of range is worded otherwise."""
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
    """What a provider's refusal says."""

    message: str = ""
    code: str = ""
    """The provider's own word for the kind of problem."""
    kind: FailureKind | None = None
    """Set where the body says it better than the status."""
    is_auth: bool = False
    """Set where it is about the key although the status does not say so."""
    is_withheld: bool = False
    """Set where the provider will not answer this conversation; that is an answer, and no failure."""
    retry_after: float | None = None
    field: str | None = None
    """The optional request field that is refused as such."""


def read_complaint(body: Any) -> Complaint:
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


def error_of(answer: HttpAnswer, complaint: Complaint, key_variable: str, url: str) -> EvsysError:
    """The error to raise; its message holds the provider's words and what to do."""
    status = answer.status
    if status < 300 and complaint.code.isdecimal():
        status = int(complaint.code)  # some gateways say 200 and mean what is inside
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
    # What the server says of itself is better than what its status means elsewhere.
    wanted = answer.headers.get("x-should-retry")
    return InferenceError(
        f"{head} {_REMEDIES[kind]}",
        kind=kind,
        status=status,
        retry_after=answer.retry_after if answer.retry_after is not None else complaint.retry_after,
        retryable={"true": True, "false": False}.get(wanted or ""),
        field=complaint.field,
    )


def _kind(status: int, complaint: Complaint) -> FailureKind:
    text = f"{complaint.code} {complaint.message}"
    if complaint.kind:
        return complaint.kind
    # Before the statuses: an empty account often answers 429, and no wait helps against it.
    if status < 500 and _NO_MONEY.search(text):
        return "quota"
    if status in (400, 413, 422) and _TOO_LONG.search(text):
        return "context_length"
    named: dict[int, FailureKind] = {402: "quota", 404: "not_found", 408: "timeout", 409: "server", 425: "server"}
    named |= {429: "rate_limited", 501: "bad_request", 503: "overloaded", 529: "overloaded"}
    if status in named:
        return named[status]
    if status < 300:
        return "bad_response"  # a refusal that came with the status of a success
    return "not_found" if status < 400 else "bad_request" if status < 500 else "server"


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]}… ({len(line)} characters)"


def read_completion(body: dict[str, Any], index: int) -> Completion:
    """The completion in a body; `index` is its place in the conversation, by which ids of calls are made."""
    choice = body["choices"][0]
    if choice.get("error"):  # some gateways report a broken generation this way
        raise InferenceError(f"the generation broke off: {json.dumps(choice['error'])}", kind="bad_response")
    said: dict[str, Any] = choice["message"]
    # Numbered on from the calls before, so that the id of a call that came without one is unique.
    calls = calls_of(said, index)
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
    if not isinstance(text, str):
        raise TypeError(f"the text is {text!r}")
    usage = _read_usage(body.get("usage"))
    return Completion(text, message, stop_reason, usage, finish=finish, model=str(body.get("model") or ""))


def _text(content: Any) -> str:
    if is_list(content):
        return "".join(block.get("text", "") for block in content if is_object(block) and block.get("type") == "text")
    return content or ""


def _read_usage(usage: Any) -> TokenUsage:
    read, written = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    if read is not None and written is not None:  # Google counts thinking, which it bills, in the total only
        written = max(written, (_count(usage, "total_tokens") or 0) - read)
    return TokenUsage(read, written, cached_tokens=_count(usage, "prompt_tokens_details", "cached_tokens") or 0)


def _count(usage: Any, *path: str) -> int | None:
    """A number of tokens in what a server reports; None where there is none."""
    for key in path:
        usage = usage.get(key) if is_object(usage) else None
    return usage if isinstance(usage, int) and usage >= 0 else None
