"""Converts the SDK's errors to messages with place, cause and remedy.

The SDK wraps most failures in a `ValueError` whose cause has the HTTP status, so causes are searched too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import BackendError, EvsysAuthError, EvsysError

_RETRIED = (408, 409, 429)
"""Client errors that may be temporary."""
_FINDS_SAVED = ("load_state", "open_sampler", "creating the model", "sampler")
"""Operations that look up something on the server."""
_LONGEST_DETAIL = 300

RESUME = "Nothing after the last checkpoint can be trusted; continue from there with --resume."


class LossFunctionError(Exception):
    """Carries an exception of a custom loss past the handling of server errors."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(original)
        self.original = original


def explain(error: BaseException, what: str, where: str) -> EvsysError:
    """The error for a failure of one operation."""
    if isinstance(error, EvsysError):
        return error
    status, detail = status_of(error), _detail(error)
    if status in (401, 403):
        return EvsysAuthError(
            f"{where} refused the key ({status}: {detail}). Set the environment variable that "
            "backend.params.api_key_env names to a key this server knows."
        )
    if status == 402:
        return BackendError(f"{where}: {what} was refused for billing reasons ({detail}). Settle it with the provider.")
    if status == 404 and what in _FINDS_SAVED:
        return BackendError(f"{where}: {what} found nothing: {detail}. Use a checkpoint that this server still has.")
    if status == 404:
        return BackendError(
            f"{where}: {what} was asked of something the server does not know ({detail}). It may have been restarted. "
            f"{RESUME}"
        )
    if is_refusal(error):
        return BackendError(f"{where}: {what} was refused: {detail}. Correct what was sent; nothing was changed by it.")
    return BackendError(f"{where}: {what} failed: {detail}. {RESUME}")


def is_refusal(error: BaseException) -> bool:
    """Whether the server refused the request, so that nothing has changed."""
    status = status_of(error)
    if status is not None:
        return 400 <= status < 500 and status not in (*_RETRIED, 404, 410)
    for link in _chain(error):
        category = getattr(link, "category", None)
        if category is not None:
            return str(getattr(category, "value", category)).lower() == "user"
    return False


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, if any."""
    for link in _chain(error):
        status = getattr(link, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def too_late(what: str, where: str, limit_s: float) -> BackendError:
    """The error of a timed-out operation; it may still happen on the server, so it must not be repeated."""
    return BackendError(
        f"{where}: {what} made no progress for {limit_s:g} s and was given up. Check that the server still works, or "
        f"raise backend.params.deadlines. {RESUME}"
    )


def no_longer_trusted(what: str, reason: str) -> BackendError:
    """The error of every call after a lost operation."""
    return BackendError(f"{what} was not sent, because an operation before it was lost. {reason}")


def _detail(error: BaseException) -> str:
    """The message of the server or the SDK, without request ids and class names."""
    for link in _chain(error):
        body = getattr(link, "body", None)
        if isinstance(body, dict):
            for key in ("detail", "message", "error"):
                if message := body.get(key):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                    return _short(str(message))  # pyright: ignore[reportUnknownArgumentType]
    text = str(error) or type(error).__name__
    text = text.removeprefix("Request failed: ").split(" for self.request_id=", 1)[0]
    return _short(text)


def _short(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}…"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
