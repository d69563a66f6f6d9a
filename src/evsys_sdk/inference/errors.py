"""Errors of inference, and whether a retry can help.

One class with a `kind`. Missing or rejected credentials are `EvsysAuthError`; an invalid conversation is a `DataError`.

| kind | meaning | retried |
|---|---|---|
| rate_limited, overloaded | the server is busy | yes |
| server, timeout, connection | it failed, took too long, or could not be reached | yes |
| bad_response | the response is not an answer | yes |
| bad_request, not_found | the request is invalid, or the model or address does not exist | no |
| context_length | the conversation exceeds the context length | no |
| quota | credit or quota is used up | no |
"""

from __future__ import annotations

from typing import Any, Literal

from ..errors import EvsysError

type FailureKind = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "timeout",
    "connection",
    "bad_response",
    "bad_request",
    "not_found",
    "context_length",
    "quota",
]

_PASSING: frozenset[FailureKind] = frozenset(
    {"rate_limited", "overloaded", "server", "timeout", "connection", "bad_response"}
)


class InferenceError(EvsysError, RuntimeError):
    """A request to a model failed."""

    def __init__(
        self,
        message: str,
        *,
        kind: FailureKind = "server",
        status: int | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        attempts: int = 1,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.status = status
        """HTTP status, if there was a response."""
        self.retry_after = retry_after
        """Seconds to wait, from the server."""
        self.retryable = kind in _PASSING if retryable is None else retryable
        """Whether the same request may succeed later; False once the attempts are used up."""
        self.attempts = attempts
        self.field = field
        """The optional request field that the model rejected, if that is the reason."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed under `--json`."""
        return {**super().to_dict(), "kind": self.kind, "status": self.status, "attempts": self.attempts}
