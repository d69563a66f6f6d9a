"""Limits on connections before authentication: the head of a request must arrive in limited time and size.

uvicorn has no such limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .settings import ServeSettings


class LimitedConnection(HttpToolsProtocol):
    """A connection with limits on time and size of request heads."""

    settings: ServeSettings
    """Set by `limit_connections`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Bytes received since the last head ended."""
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.settings.head_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Counted before parsing: the parser does not report an endless head.
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        super().data_received(data)
        if not self._in_head:
            return
        if self._head_bytes > self.settings.max_head_bytes:
            self.transport.abort()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.settings.head_s, self.transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._cancel_deadline()
        super().on_headers_complete()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def limit_connections(settings: ServeSettings) -> type[LimitedConnection]:
    """The protocol class of uvicorn for the connections of one server."""
    # Every request for a result holds a connection, and the default limit is 1024 open files.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return type("LimitedConnection", (LimitedConnection,), {"settings": settings})
