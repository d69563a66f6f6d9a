"""What our own server is asked and answers, as traces: `evsys serve --traces support`.

The server hands over every conversation that it has answered, by any of its chat APIs. An answer is never held up:
what was said is added to the store by its own thread, and in a crowd too large for that it is dropped and counted.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
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
_AT_ONCE: Final = 500
_LONGEST_WAIT_S: Final = 2.0


class RequestLog:
    """Keeps answers; close it at the end."""

    def __init__(self, store: LiveStore, rules: Sequence[RewardRule] = ()) -> None:
        self._store = store
        self._feedback = FeedbackLog(store, rules=rules)
        self._waiting: queue.Queue[ServedAnswer | threading.Event | None] = queue.Queue(_MOST_WAITING)
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def keep(self, answer: ServedAnswer, size: int) -> None:
        """Keep an answer to a request of `size` bytes."""
        if size <= _LONGEST:
            self._add(answer)

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
        mark = threading.Event()
        if self._add(mark):
            mark.wait(_LONGEST_WAIT_S)

    def close(self) -> None:
        """Write what is still waiting."""
        self._waiting.put(None)
        self._thread.join()
        if self.dropped:
            get_logger(__name__).warning("%d exchanges came too quickly and are not among the traces", self.dropped)

    def _add(self, one: ServedAnswer | threading.Event) -> bool:
        try:
            self._waiting.put_nowait(one)
        except queue.Full:
            # A mark that finds no place is nothing that was said.
            self.dropped += not isinstance(one, threading.Event)
            return False
        return True

    def _write(self) -> None:
        is_over = False
        while not is_over:
            # Waits for one and takes what else is there by now: a
            # quiet server writes at once, a busy one many at a time.
            found = [self._waiting.get()]
            while len(found) < _AT_ONCE and not self._waiting.empty():
                found.append(self._waiting.get())
            is_over = None in found
            heard = [_read_answer(one) for one in found if isinstance(one, ServedAnswer)]
            try:
                if heard:
                    self._store.add(heard, openai_chat.NAME)
            except EvsysError as error:  # a full disk must not end the server
                get_logger(__name__).error("%d traces could not be kept: %s", len(heard), error)
            # After the writing: who waits for a mark may look into the file as soon as it is set.
            for one in found:
                if isinstance(one, threading.Event):
                    one.set()


def _read_answer(answer: ServedAnswer) -> dict[str, Any]:
    """A record of a conversation and its answer."""
    request = {"messages": answer.messages, "model": answer.model, "metadata": answer.metadata}
    return {"id": answer.id, "time": answer.time, "request": request, "response": answer.response}
