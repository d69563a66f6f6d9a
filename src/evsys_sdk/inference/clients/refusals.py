"""An answer that is a refusal -> the error that says what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import EvsysAuthError, EvsysError
from ..errors import FailureKind, InferenceError
from ..transport import HttpAnswer, place

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
