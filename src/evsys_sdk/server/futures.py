"""Results that clients come back for: each request has an id, and its result waits here until it is fetched.

A result that was fetched stays for a while, because the answer may have been lost on its way and is then asked for
again. The ids follow from the request, so a request that is sent twice has one result.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from .answer import Answer, Refusal

_KEEP_S: Final = 120.0
_KEEP_BYTES: Final = 64_000_000


@dataclass(slots=True)
class _Entry:
    session_id: str
    queue: str
    """What it counts against: a model, or all sampling."""
    result: asyncio.Future[Answer]
    fetched: bool = False


@dataclass(slots=True)
class Futures:
    """All results of a server."""

    _entries: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    _open: dict[str, int] = field(default_factory=dict[str, int])
    _fetched: deque[tuple[float, str, int]] = field(default_factory=deque[tuple[float, str, int]])
    _fetched_bytes: int = 0
    _running: set[str] = field(default_factory=set[str])

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def open(self, request_id: str, *, session_id: str, queue: str) -> None:
        """Promise a result."""
        result = asyncio.get_running_loop().create_future()
        self._entries[request_id] = _Entry(session_id, queue, result)
        self._open[queue] = self._open.get(queue, 0) + 1
        self._running.add(request_id)

    def finish(self, request_id: str, answer: Answer) -> None:
        """Keep the promise; nothing happens if the session has ended meanwhile."""
        self._running.discard(request_id)
        entry = self._entries.get(request_id)
        if entry is not None and not entry.result.done():
            entry.result.set_result(answer)

    @property
    def running(self) -> int:
        """How many operations have been accepted and have not ended."""
        return len(self._running)

    def waiting(self, queue: str) -> int:
        """Results of a queue that are not there yet or were not fetched."""
        return self._open.get(queue, 0)

    def unfetched(self) -> int:
        """Results that nobody has fetched yet."""
        return sum(self._open.values())

    async def fetch(self, request_id: str, wait_s: float) -> Answer:
        """The result, or after `wait_s` the answer that there is none yet."""
        entry = self._entries.get(request_id)
        if entry is None:
            raise Refusal(
                410,
                f"there is no request {request_id!r}: its session has ended, its result was fetched long ago, or the "
                "server was restarted. Saved weights are still there: go on from them with a new client.",
            )
        done, _ = await asyncio.wait([entry.result], timeout=wait_s)
        if not done:
            return Answer.json({"type": "try_again", "request_id": request_id, "queue_state": "active"}, 408)
        if not entry.fetched:
            entry.fetched = True
            self._close(entry.queue)
            self._retire(request_id, len(entry.result.result().body))
        return entry.result.result()

    def end_session(self, session_id: str) -> None:
        """Forget everything a session was promised."""
        for request_id in [key for key, entry in self._entries.items() if entry.session_id == session_id]:
            entry = self._entries.pop(request_id)
            self._running.discard(request_id)
            if not entry.fetched:
                entry.fetched = True  # whoever is waiting for it must not count it again
                self._close(entry.queue)
            if not entry.result.done():
                entry.result.set_result(Answer.failed("the session has ended.", "user"))

    def _close(self, queue: str) -> None:
        left = self._open.get(queue, 0) - 1
        if left > 0:
            self._open[queue] = left
        else:
            self._open.pop(queue, None)

    def _retire(self, request_id: str, size: int) -> None:
        now = time.monotonic()
        self._fetched.append((now, request_id, size))
        self._fetched_bytes += size
        while self._fetched and (self._fetched[0][0] < now - _KEEP_S or self._fetched_bytes > _KEEP_BYTES):
            _, old, old_size = self._fetched.popleft()
            self._fetched_bytes -= old_size
            if old != request_id:
                self._entries.pop(old, None)
