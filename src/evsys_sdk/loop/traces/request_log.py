"""Store the requests and answers of the server as traces: `evsys serve --traces support`.

The server passes every answered conversation of its chat APIs. A separate thread writes them, so that answers are not
delayed; under too much load traces are dropped and counted.
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
    """Stores answers as traces; must be closed."""

    def __init__(self, store: LiveStore, rules: Sequence[RewardRule] = ()) -> None:
        self._store = store
        self._feedback = FeedbackLog(store, rules=rules)
        self._waiting = deque[ServedAnswer]()
        self._writer = ThreadPoolExecutor(1, "evsys-traces")
        self.dropped = 0

    def keep(self, answer: ServedAnswer, size: int) -> None:
        """Queue an answer to a request of `size` bytes."""
        if len(self._waiting) >= _MOST_WAITING:
            self.dropped += 1
        elif size <= _LONGEST:
            self._waiting.append(answer)
            self._writer.submit(self._write)

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Store feedback on a stored answer; None if there is no such answer."""
        try:
            feedback = GivenFeedback.model_validate(dict(fields))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the feedback"
            raise DataError(f"{place}: {first['msg']}. See docs/traces.md.") from None
        report = self._feedback.add([feedback], via="server")
        if report.unknown:  # the answer may still be in the queue
            self.settle()
            report = self._feedback.add([feedback], via="server")
        if report.unknown:
            return None
        if report.crowded:
            raise DataError(
                f"{show(feedback.response_id)} has the maximum of feedback. Send feedback on other answers."
            )
        state = "known" if report.known else "changed" if report.changed else "added"
        return {"response_id": feedback.response_id, "state": state, "late": bool(report.late)}

    def settle(self) -> None:
        """Wait until the queued answers are stored, at most two seconds."""
        with suppress(TimeoutError):
            self._writer.submit(self._write).result(_LONGEST_WAIT_S)

    def close(self) -> None:
        """Write the queued answers."""
        self._writer.shutdown()
        if self.dropped:
            get_logger(__name__).warning("%d answers arrived too quickly and were not stored as traces", self.dropped)

    def _write(self) -> None:
        """Store all queued answers in one batch."""
        records = [_read_answer(self._waiting.popleft()) for _ in range(len(self._waiting))]
        try:
            if records:
                self._store.add(records, openai_chat.NAME)
        except EvsysError as error:  # e.g. a full disk must not end the server
            get_logger(__name__).error("%d traces could not be stored: %s", len(records), error)


def _read_answer(answer: ServedAnswer) -> dict[str, Any]:
    """The record of a conversation and its answer."""
    request = {"messages": answer.messages, "model": answer.model, "metadata": answer.metadata}
    return {"id": answer.id, "time": answer.time, "request": request, "response": answer.response}
