"""Notify pages of changes: server-sent events with the ids of experiments to fetch again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

from ..views.source import RecordSource

KEEP_ALIVE_S = 15.0
_POLL_S = 1.0
_LULL_S = 0.2
"""Changes within this time are sent together, because a busy project commits many times a second."""
_MOST_OF_THE_TIME = 10
"""At most one part in this many of the time is spent polling the disk."""


class Signal:
    """Wakes all streams after a commit; `ring` is thread-safe."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.rung = 0
        """Number of rings; a reader that reads it before the data misses no change."""
        self.closed = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def ring(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self.rung += 1
        for event in self._waiting:
            event.set()

    async def wait(self, last_seen: int, timeout_s: float) -> None:
        """Wait until `rung` differs from `last_seen`, or until the timeout."""
        if self.rung != last_seen:
            return
        event = asyncio.Event()  # one per waiter, because a shared event could be cleared too early
        self._waiting.add(event)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), timeout_s)
        finally:
            self._waiting.discard(event)


async def stream_changes(
    source: RecordSource, signal: Signal, since: int | None, *, polled: bool
) -> AsyncIterator[bytes]:
    """Yield every change of a project after a version as an event; with `polled`, check the source periodically."""
    version = await asyncio.to_thread(source.version) if since is None else since
    # `retry` is in milliseconds: a browser reconnects by itself and sends the last `id`.
    yield b"retry: 2000\n" + _message("hello", version, {"version": version})
    last_sent, pause = time.monotonic(), _POLL_S if polled else KEEP_ALIVE_S
    while not signal.closed:
        began, last_seen = time.monotonic(), signal.rung
        changes = await asyncio.to_thread(source.changes, version)
        for change in changes:
            version = max(version, change.version)
            data: dict[str, str | int] = {"kind": change.kind, "id": change.id, "version": change.version}
            yield _message("change", change.version, data)
            last_sent = time.monotonic()
        if time.monotonic() - last_sent >= KEEP_ALIVE_S:
            yield b": still here\n\n"
            last_sent = time.monotonic()
        if polled:
            pause = max(_POLL_S, (time.monotonic() - began) * _MOST_OF_THE_TIME)
        await signal.wait(last_seen, pause)
        await asyncio.sleep(_LULL_S)


def _message(event: str, version: int, data: dict[str, str | int]) -> bytes:
    return f"id: {version}\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()
