"""Retries: exponential backoff with full jitter that honours the server's retry-after.

A call is repeated while its error is retryable (`is_retryable`), attempts remain and the deadline allows the wait.
Other errors are raised immediately. The last error is raised with the number of attempts and is no longer retryable, so
that nested retries do not multiply.

    text = call_with_retry(lambda: client.generate(prompt=p, max_tokens=64, temperature=0.0), what="task 7")
    text = await call_with_retry_async(fetch, attempts=3, report=report, what="task 7")
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypedDict, Unpack

from ..errors import EvsysError
from ..log import get_logger
from ..redact import redact_text
from .errors import InferenceError

type RetryOn = Callable[[Exception], bool] | type[Exception] | tuple[type[Exception], ...]

_log = get_logger(__name__)
_chance = random.SystemRandom()  # independent of the experiment's random state and of forks
# 52x: a proxy did not reach its server; 529: some providers' status for overload.
_PASSING_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})


@dataclass(frozen=True, slots=True)
class RetryFailure:
    """A call that failed after all retries."""

    what: str
    attempts: int
    last_error: str


class RetryReport:
    """Counts of calls, retries and failures; thread-safe."""

    def __init__(self) -> None:
        self.calls = 0
        self.retries = 0
        self.failures: list[RetryFailure] = []
        self._lock = threading.Lock()

    @property
    def total_failures(self) -> int:
        """Calls that failed after all retries."""
        return len(self.failures)

    def count(self, attempts: int, failure: RetryFailure | None = None) -> None:
        """Count one finished call."""
        with self._lock:
            self.calls += 1
            self.retries += attempts - 1
            self.failures += [failure] if failure else []

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that records hold."""
        failures = [asdict(failure) for failure in self.failures]
        totals = {"calls": self.calls, "retries": self.retries, "total_failures": self.total_failures}
        return {**totals, "failures": failures}


def is_retryable(error: Exception) -> bool:
    """Whether an error may be transient: from its `retryable`, its HTTP status, or as a connection failure."""
    declared = getattr(error, "retryable", None)
    if isinstance(declared, bool):
        return declared
    status = getattr(error, "status_code", None)  # the usual name in other SDKs
    if isinstance(status, int):
        return status in _PASSING_STATUSES
    if isinstance(error, EvsysError):
        return False
    # Compare names, to avoid importing these libraries.
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.partition(".")[0] in ("httpx", "requests")}
    return isinstance(error, TimeoutError | ConnectionError) or bool(
        names & {"TransportError", "Timeout", "ConnectionError"}
    )


class RetryOptions(TypedDict, total=False):
    """Options of a retried call; the defaults are in `_Tries`."""

    attempts: int
    base_delay: float
    max_delay: float
    jitter: bool
    retry_on: RetryOn
    deadline: float | None
    """Seconds after the first failure in which a new attempt may start."""
    what: str
    report: RetryReport | None
    """Counts the call and stores its failure."""


def call_with_retry[T](
    fn: Callable[[], T], *, sleep: Callable[[float], object] = time.sleep, **options: Unpack[RetryOptions]
) -> T:
    """Call `fn` until it succeeds, or raise its last error."""
    tries = _Tries(**options)
    while True:
        try:
            result = fn()
        except Exception as error:
            sleep(tries.delay_after(error))
        else:
            tries.note_success()
            return result


async def call_with_retry_async[T](
    fn: Callable[[], Awaitable[T]],
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    **options: Unpack[RetryOptions],
) -> T:
    """`call_with_retry` for async functions."""
    tries = _Tries(**options)
    while True:
        try:
            result = await fn()
        except Exception as error:
            await sleep(tries.delay_after(error))
        else:
            tries.note_success()
            return result


@dataclass(slots=True)
class _Tries:
    """The attempts at one call."""

    attempts: int = 5
    base_delay: float = 1.0
    max_delay: float = 60.0
    jitter: bool = True
    retry_on: RetryOn = is_retryable
    deadline: float | None = None
    what: str = "the call"
    report: RetryReport | None = None
    _first_failure: float = 0.0
    _attempt: int = 1

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; a call needs at least 1.")

    def note_success(self) -> None:
        if self.report:
            self.report.count(self._attempt)

    def delay_after(self, error: Exception) -> float:
        """The wait before the next attempt; raises the error if there is none."""
        if self._attempt == 1:
            self._first_failure = time.monotonic()
        chosen = self.retry_on
        may_pass = isinstance(error, chosen) if isinstance(chosen, type | tuple) else chosen(error)
        if not may_pass:
            self._give_up(error, "")
        if self._attempt == self.attempts:
            self._give_up(error, f"it failed {self.attempts} times" if self.attempts > 1 else "")
        delay = self._delay(error)
        waited = time.monotonic() - self._first_failure
        if self.deadline is not None and waited + delay > self.deadline:
            self._give_up(error, f"the next attempt would begin after the deadline of {self.deadline:g} s")
        _log.info(
            "%s: attempt %d of %d failed (%s); next in %.1f s",
            self.what,
            self._attempt,
            self.attempts,
            redact_text(str(error)),
            delay,
        )
        self._attempt += 1
        return delay

    def _delay(self, error: Exception) -> float:
        # Bound the exponent: a float would overflow.
        longest = min(self.max_delay, self.base_delay * 2.0 ** min(self._attempt - 1, 60))
        requested = getattr(error, "retry_after", None)
        if isinstance(requested, int | float):
            # Jitter on top, so that clients do not retry simultaneously.
            return requested + (_chance.uniform(0, self.base_delay) if self.jitter else 0.0)
        return _chance.uniform(0, longest) if self.jitter else longest

    def _give_up(self, error: Exception, reason: str) -> None:
        if self.report:
            last = redact_text(f"{type(error).__name__}: {error}")
            self.report.count(self._attempt, RetryFailure(self.what, self._attempt, last))
        if not reason:
            raise error
        reason = f"{self.what}: gave up after attempt {self._attempt} of {self.attempts} because {reason}"
        # Errors of other classes cannot be rebuilt with a new message, and callers catch them by class.
        if not isinstance(error, InferenceError):
            error.add_note(reason)
            raise error
        raise InferenceError(
            f"{reason}. The last error: {error}",
            kind=error.kind,
            status=error.status,
            retry_after=error.retry_after,
            retryable=False,
            attempts=self._attempt,
            field=error.field,
        ) from error
