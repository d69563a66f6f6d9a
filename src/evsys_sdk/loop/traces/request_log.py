"""What our own server is asked and answers, as traces: `evsys serve --traces support`.

The server hands over every conversation that it has answered, by any of its chat APIs. An answer is never held up:
what was said is added to the store by its own thread, and in a crowd too large for that it is dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from ...errors import DataError, EvsysError, show
from ...log import get_logger
from ...server.trace_log import ServedAnswer
from .feedback import GivenFeedback
from .feedback_log import FeedbackLog
from .formats import openai_chat
from .store import LiveStore
from .trace import RewardRule

_LONGEST: Final = 4_000_000
_MOST_WAITING: Final = 10_000
_LONGEST_WAIT_S: Final = 2.0


class RequestLog:
    """Keeps answers; close it at the end."""

    def __init__(self, store: LiveStore, rules: Sequence[RewardRule] = ()) -> None:
        self._store = store
        self._feedback = FeedbackLog(store, rules=rules)
        self._waiting = deque[ServedAnswer]()
        self._writer = ThreadPoolExecutor(1, "evsys-traces")
        self.dropped = 0

    def keep(self, answer: ServedAnswer, size: int) -> None:
        """Keep an answer to a request of `size` bytes."""
        if len(self._waiting) >= _MOST_WAITING:
            self.dropped += 1
        elif size <= _LONGEST:
            self._waiting.append(answer)
            self._writer.submit(self._write)

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keep what somebody thought of an answer that was kept; None where there is no such answer."""
        try:
            given = GivenFeedback.model_validate(dict(fields))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the feedback"
            raise DataError(f"{place}: {first['msg']}. See docs/traces.md.") from None
        report = self._feedback.add([given], via="server")
        if report.unknown:  # perhaps it was said a moment ago
            self.settle()
            report = self._feedback.add([given], via="server")
        if report.unknown:
            return None
        if report.crowded:
            raise DataError(f"too much was said about {show(given.response_id)} already.")
        state = "known" if report.known else "changed" if report.changed else "added"
        return {"response_id": given.response_id, "state": state, "late": bool(report.late)}

    def settle(self) -> None:
        """Wait until all that was said so far is in the store, or for as long as can be expected of who waits."""
        with suppress(TimeoutError):
            self._writer.submit(self._write).result(_LONGEST_WAIT_S)

    def close(self) -> None:
        """Write what is still waiting."""
        self._writer.shutdown()
        if self.dropped:
            get_logger(__name__).warning("%d exchanges came too quickly and are not among the traces", self.dropped)

    def _write(self) -> None:
        """Add all answers that wait: on a busy server many at a time."""
        heard = [_read_answer(self._waiting.popleft()) for _ in range(len(self._waiting))]
        try:
            if heard:
                self._store.add(heard, openai_chat.NAME)
        except EvsysError as error:  # a full disk must not end the server
            get_logger(__name__).error("%d traces could not be kept: %s", len(heard), error)


def _read_answer(answer: ServedAnswer) -> dict[str, Any]:
    """A record of a conversation and its answer."""
    request = {"messages": answer.messages, "model": answer.model, "metadata": answer.metadata}
    return {"id": answer.id, "time": answer.time, "request": request, "response": answer.response}
