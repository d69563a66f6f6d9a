"""Results of requests, stored by request id until the client fetches them.

A fetched result stays for a while, because a response may be lost and requested again. Ids are derived from the
request, so a repeated request has one result. Pending requests share a limit of memory.
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
    """Memory limit for the requests that a server holds."""

    limit: int
    """Limit in bytes."""
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

    def release(self, size: int) -> None:
        self.used -= size


@dataclass(slots=True)
class ResultReading:
    """Memory of one request while it is read and handled."""

    memory: Memory
    most: int
    hint: str
    """What to do about a request that is too long."""
    size: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.memory.release(self.size)

    def check_announced(self, size: int) -> None:
        """Refuse a too large Content-Length. It reserves no memory, because the body may never arrive."""
        if size > self.most:
            raise Refusal(413, f"the request is longer than {self.most / 1e6:g} MB. {self.hint}")

    def grow(self, size: int) -> None:
        """Reserve memory for `size` received bytes."""
        self.check_announced(size)
        if size > self.size:
            self.memory.check(size - self.size)
            self.memory.hold(size - self.size)
            self.size = size


# Fetched results are kept within these limits, for clients whose connection broke.
_KEEP_S: Final = 120.0
_KEEP_BYTES: Final = 64_000_000
_UNLIMITED: Final = 1 << 62


@dataclass(slots=True)
class _Entry:
    session_id: str
    queues: tuple[str, ...]
    """The queues that it counts against: a model, or the sampling of a session and of all sessions."""
    result: asyncio.Future[Response]
    size: int
    """Bytes of the request, reserved until the result is available."""
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
        """Register a pending result for a request of `size` bytes."""
        result = asyncio.get_running_loop().create_future()
        self._entries[request_id] = _Entry(session_id, queues, result, size)
        self.memory.hold(size)
        self._waiting.update(queues)

    def finish(self, request_id: str, answer: Response) -> None:
        """Store the result; ignored if the session has ended."""
        entry = self._entries.get(request_id)
        if entry is not None and not entry.result.done():
            self.memory.release(entry.size)
            entry.result.set_result(answer)

    @property
    def running(self) -> int:
        """Number of accepted operations that have not ended."""
        return sum(not entry.result.done() for entry in self._entries.values())

    def count_waiting(self, queue: str) -> int:
        """Number of pending or unfetched results of a queue."""
        return self._waiting[queue]

    def count_unfetched(self) -> int:
        """Number of unfetched results."""
        return sum(not entry.fetched for entry in self._entries.values())

    async def fetch(self, request_id: str, wait_s: float) -> Response:
        """The result, or a try-again response after `wait_s`."""
        entry = self._entries.get(request_id)
        if entry is None:
            raise Refusal(
                410,
                f"there is no request {request_id!r}: its session has ended, its result was fetched long ago, or the "
                "server was restarted. Saved weights are still there: continue from them with a new client.",
            )
        # Not `wait_for`, which would cancel the result at the time limit for all waiting clients.
        done, _ = await asyncio.wait([entry.result], timeout=wait_s)
        if not done:
            return answer_json({"type": "try_again", "request_id": request_id, "queue_state": "active"}, 408)
        if not entry.fetched:
            entry.fetched = True
            self._close(entry)
            self._retire(request_id, len(entry.result.result().body))
        return entry.result.result()

    def end_session(self, session_id: str) -> None:
        """Drop all results of a session."""
        for request_id in [key for key, entry in self._entries.items() if entry.session_id == session_id]:
            entry = self._entries.pop(request_id)
            if not entry.fetched:
                entry.fetched = True  # counted once for all waiting clients
                self._close(entry)
            if not entry.result.done():
                self.memory.release(entry.size)
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
            if old != request_id:  # keep the current one, whatever its size
                self._entries.pop(old, None)
