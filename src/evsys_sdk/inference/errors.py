"""What goes wrong between us and a model, and whether trying again can help.

One class with a `kind`, because callers ask the same two questions of all of them: is it our fault, and is it over?
Missing or refused credentials are `EvsysAuthError`; a conversation that cannot be sent is a `DataError`.

| kind | meaning | tried again |
|---|---|---|
| rate_limited, overloaded | the server asks for patience | yes |
| server, timeout, connection | it failed, took too long, or could not be reached | yes |
| bad_response | what came back is not an answer | yes |
| bad_request, not_found | the request is wrong, or there is no such model or address | no |
| context_length | the conversation is longer than the model reads | no |
| quota | there is no money or allowance left | no |
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
    """A model could not be asked, or did not answer."""

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
        """HTTP status, where there was an answer."""
        self.retry_after = retry_after
        """Seconds the server asks to wait."""
        self.retryable = kind in _PASSING if retryable is None else retryable
        """Whether the same request may succeed later; False once the attempts are used up."""
        self.attempts = attempts
        self.field = field
        """The optional request field that this model does not take, where that is the reason."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed under `--json`."""
        return {**super().to_dict(), "kind": self.kind, "status": self.status, "attempts": self.attempts}
