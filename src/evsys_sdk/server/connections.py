"""Connections: how many, how long without a request, and how much may stand before one. All before any key is seen.

uvicorn reads a head of any length for any time. Here a connection has some seconds to send one and a few kilobytes to
write it in, and when there are too many, the one that has waited longest for a request makes room.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .answer import Refusal
from .settings import ServeSettings

_OTHER_FILES: Final = 256
"""Descriptors that are not connections: weights, logs, the event loop."""


class Connections:
    """All connections of a server."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.most = min(settings.max_connections, max(64, _allow_many_files() - _OTHER_FILES))
        # Dicts as ordered sets: the oldest is the first, and any of them leaves in constant time.
        self.half_open: dict[LimitedConnection, None] = {}
        """No request has come yet; the oldest first."""
        self.idle: dict[LimitedConnection, None] = {}
        """Between two requests."""
        self.count = 0

    def open(self, connection: LimitedConnection) -> bool:
        """Take a connection in, if need be in place of another; False if all others are being served."""
        self.count += 1
        self.half_open[connection] = None
        if len(self.half_open) > self.settings.max_half_open:
            self._drop_oldest(self.half_open)
        if self.count > self.most:
            # more than one, because the connection that has just come stands there, too
            return self._drop_oldest(self.idle) or (len(self.half_open) > 1 and self._drop_oldest(self.half_open))
        return True

    def close(self, connection: LimitedConnection) -> None:
        self.count -= 1
        self.serve(connection)

    def serve(self, connection: LimitedConnection) -> None:
        """A request has come."""
        self.half_open.pop(connection, None)
        self.idle.pop(connection, None)

    def rest(self, connection: LimitedConnection) -> None:
        """A request was answered."""
        self.idle[connection] = None

    def _drop_oldest(self, among: dict[LimitedConnection, None]) -> bool:
        if not among:
            return False
        oldest = next(iter(among))
        del among[oldest]
        oldest.transport.abort()  # `close` would wait until the other side has read what is left for it
        return True


class LimitedConnection(HttpToolsProtocol):
    """One connection, within limits."""

    all: Connections
    """Set by `limit_connections`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        """What has come since the last head ended: all of this one, if `_in_head`."""
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect_head()
        if not self.all.open(self):
            self._refuse(Refusal(503, "too many connections are open here.", retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self.all.close(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        # Counted before it is parsed: of a head that never ends, the parser never tells.
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head:
            self._head_bytes = 0
        elif self._head_bytes > self.all.settings.max_head_bytes:
            self._refuse_head()
        elif self._deadline is None:
            self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._forget_deadline()
        self.all.serve(self)
        if len(self.headers) > self.all.settings.max_headers or self._head_is_long():
            self._refuse_head()
        else:
            super().on_headers_complete()

    def _head_is_long(self) -> bool:
        limit = self.all.settings.max_head_bytes
        if self._head_bytes <= limit:  # with some of the body, perhaps
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limit

    # Also after a refusal the parser continues through the bytes that it was given.
    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():  # with a pipeline the next is being served already
            self.all.rest(self)

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(self.all.settings.head_s, self._give_up)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.abort()

    def _refuse_head(self) -> None:
        limits = self.all.settings
        message = f"the head of a request may have {limits.max_head_bytes} bytes and {limits.max_headers} headers here."
        self._refuse(Refusal(431, message))

    def _refuse(self, refusal: Refusal) -> None:
        self._refused = True
        # Written by hand: without a whole head there is no request that the application could answer.
        answer = refusal.answer()
        headers = b"".join(b"%b: %b\r\n" % header for header in answer.raw_headers)
        head = STATUS_LINE[refusal.status] + headers + b"connection: close\r\n\r\n"
        self.transport.write(head + bytes(answer.body))
        self.transport.close()


def limit_connections(settings: ServeSettings) -> type[LimitedConnection]:
    """The protocol that uvicorn gives to each connection of one server."""
    return type("LimitedConnection", (LimitedConnection,), {"all": Connections(settings)})


def _allow_many_files() -> int:
    """Every request for a result holds a connection, and systems allow 1024 files unless asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if allowed == resource.RLIM_INFINITY else allowed
