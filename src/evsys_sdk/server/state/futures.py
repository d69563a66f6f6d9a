"""Results that clients come back for: each request has an id, and its result waits here until it is fetched.

A result that was fetched stays for a while, because the answer may have been lost on its way and is then asked for
again. The ids follow from the request, so a request that is sent twice has one result. Until its result is there, a
request takes up memory, which all of them share.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, Self

from starlette.responses import Response

from ..answer import Refusal, answer_failure, answer_json


@dataclass(slots=True)
class Memory:
    """Room for the requests that a server holds at once: many long ones together must not fill it."""

    limit: int
    """Bytes in all."""
    used: int = 0

    def check(self, size: int) -> None:
        """Refuse `size` bytes that do not fit."""
        if self.used + size > self.limit:
            raise Refusal(
                429,
                f"requests of {self.limit / 1e6:g} MB are waiting here already. Try again, or raise --max-request-mb.",
                retry_after_s=1,
            )

    def hold(self, size: int) -> None:
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size


@dataclass(slots=True)
class ResultReading:
    """Room for one request as long as it is read and answered."""

    memory: Memory
    most: int
    hint: str
    """What to do about one that is longer."""
    size: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.memory.give_back(self.size)

    def check_announced(self, size: int) -> None:
        """Refuse what says that it is too long. Nothing is kept for it: it may never come."""
        if size > self.most:
            raise Refusal(413, f"the request is longer than {self.most / 1e6:g} MB. {self.hint}")

    def grow(self, size: int) -> None:
        """See to it that the `size` bytes that have come fit."""
        self.check_announced(size)
        if size > self.size:
            self.memory.check(size - self.size)
            self.memory.hold(size - self.size)
            self.size = size


# Results that were fetched are kept for so long and within so many bytes, for a client whose connection broke.
_KEEP_S: Final = 120.0
_KEEP_BYTES: Final = 64_000_000
_UNLIMITED: Final = 1 << 62


@dataclass(slots=True)
class _Entry:
    session_id: str
    queues: tuple[str, ...]
    """What it counts against: a model, or the sampling of a session and of all."""
    result: asyncio.Future[Response]
    size: int
    """Bytes of the request that are held until the result is there."""
    fetched: bool = False


@dataclass(slots=True)
class Futures:
    """All results of a server."""

    memory: Memory = field(default_factory=lambda: Memory(_UNLIMITED))
    _entries: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    _waiting: Counter[str] = field(default_factory=Counter[str])
    _fetched: deque[tuple[float, str, int]] = field(default_factory=deque[tuple[float, str, int]])
    _fetched_bytes: int = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def open(self, request_id: str, *queues: str, session_id: str, size: int = 0) -> None:
        """Promise a result to a request of `size` bytes."""
        result = asyncio.get_running_loop().create_future()
        self._entries[request_id] = _Entry(session_id, queues, result, size)
        self.memory.hold(size)
        self._waiting.update(queues)

    def finish(self, request_id: str, answer: Response) -> None:
        """Keep the promise; nothing happens if the session has ended meanwhile."""
        entry = self._entries.get(request_id)
        if entry is not None and not entry.result.done():
            self.memory.give_back(entry.size)
            entry.result.set_result(answer)

    @property
    def running(self) -> int:
        """How many operations have been accepted and have not ended."""
        return sum(not entry.result.done() for entry in self._entries.values())

    def count_waiting(self, queue: str) -> int:
        """Results of a queue that are not there yet or were not fetched."""
        return self._waiting[queue]

    def count_unfetched(self) -> int:
        """Results that no one has fetched yet."""
        return sum(not entry.fetched for entry in self._entries.values())

    async def fetch(self, request_id: str, wait_s: float) -> Response:
        """The result, or after `wait_s` the answer that there is none yet."""
        entry = self._entries.get(request_id)
        if entry is None:
            raise Refusal(
                410,
                f"there is no request {request_id!r}: its session has ended, its result was fetched long ago, or the "
                "server was restarted. Saved weights are still there: continue from them with a new client.",
            )
        # Not `wait_for`: when the time is up it would cancel the result, for everybody who waits for it.
        done, _ = await asyncio.wait([entry.result], timeout=wait_s)
        if not done:
            return answer_json({"type": "try_again", "request_id": request_id, "queue_state": "active"}, 408)
        if not entry.fetched:
            entry.fetched = True
            self._close(entry)
            self._retire(request_id, len(entry.result.result().body))
        return entry.result.result()

    def end_session(self, session_id: str) -> None:
        """Forget everything a session was promised."""
        for request_id in [key for key, entry in self._entries.items() if entry.session_id == session_id]:
            entry = self._entries.pop(request_id)
            if not entry.fetched:
                entry.fetched = True  # a waiting client must not count it again
                self._close(entry)
            if not entry.result.done():
                self.memory.give_back(entry.size)
                entry.result.set_result(answer_failure("the session has ended.", "user"))

    def _close(self, entry: _Entry) -> None:
        for queue in entry.queues:
            self._waiting[queue] -= 1
            if not self._waiting[queue]:
                del self._waiting[queue]

    def _retire(self, request_id: str, size: int) -> None:
        now = time.monotonic()
        self._fetched.append((now, request_id, size))
        self._fetched_bytes += size
        while self._fetched and (self._fetched[0][0] < now - _KEEP_S or self._fetched_bytes > _KEEP_BYTES):
            _, old, old_size = self._fetched.popleft()
            self._fetched_bytes -= old_size
            if old != request_id:  # this one may be asked for again, however long it is
                self._entries.pop(old, None)
