"""Start and stop the server of the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp

from ...errors import ConfigError
from ...server.settings import is_loopback

_GRACE_S = 5
_GC_THRESHOLD = 50_000
"""Threshold of garbage collection; a batch of records creates about ten thousand objects, none of them cyclic."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # without it, asyncio sets no TCP_NODELAY
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(128)  # now, because two sockets can bind to one port until one listens
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}. Choose another --port or --host.") from None
    return sock


def list_hosts(host: str, port: int, more: Sequence[str] = ()) -> set[str]:
    """The accepted values of the Host header."""
    names = {f"[{host}]" if ":" in host else host}
    if is_loopback(host) or host in ("0.0.0.0", "::"):  # wildcard addresses never occur as a host
        names |= {"localhost", "127.0.0.1", "[::1]"}
    return {f"{name}:{port}" for name in names} | {*more, *(f"{name}:{port}" for name in more)}


def serve(app: ASGIApp, sock: socket.socket, announce: Callable[[], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, then finish running requests."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        date_header=False,
        lifespan="on",
        ws="none",
    )
    server = _Server(config, announce)
    gc.freeze()  # excludes imported modules, whose collection takes a fifth of the time of ingestion
    gc.set_threshold(_GC_THRESHOLD)
    with contextlib.closing(sock), contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(sockets=[sock]))


class _Server(uvicorn.Server):
    """Calls `announce` when the server is ready."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()
