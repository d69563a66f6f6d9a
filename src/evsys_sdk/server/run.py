"""Starts and stops a server: the socket, signals, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

from ..builtins import EXTRA_MODULES
from ..errors import ConfigError, MissingExtraError
from ..log import get_logger
from .settings import ServeSettings
from .trace_log import TraceLog
from .weights.catalog import Catalog

_CLOSE_S: Final = 10.0
_FETCH_S: Final = 3.0
"""Time for clients to fetch results after the last operation has ended."""


def serve(
    settings: ServeSettings,
    announce: Callable[[str], None],
    catalog: Catalog | None = None,
    log: TraceLog | None = None,
) -> None:
    """Serve until a stop signal; `announce` gets the URL once clients can connect, `log` the messages."""
    if any(find_spec(name) is None for name in EXTRA_MODULES["server"]):
        raise MissingExtraError("evsys serve", "server")
    from .service import Service
    from .tinker.protobuf import messages

    messages()  # report a missing package before a client connects
    listening = listen(settings.host, settings.port)  # before loading models, to report a used port immediately
    try:
        asyncio.run(_serve(Service.start(settings, catalog, log), listening, announce))
    finally:
        listening.close()


async def _serve(service: Any, listening: socket.socket, announce: Callable[[str], None]) -> None:
    import uvicorn

    from .app import App
    from .connections import limit_connections
    from .operations import Operations

    loop = asyncio.get_running_loop()
    config: Any = uvicorn.Config(
        Operations(
            App(service),
            ready=lambda: "draining" if service.draining else "",
            gauges=service.gauges,
        ),
        http=limit_connections(service.settings),
        limit_concurrency=service.settings.max_connections,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than clients keep idle connections, so that none closes during a request
        timeout_graceful_shutdown=5,
    )

    stopping = asyncio.Event()
    server: Any = uvicorn.Server(config)
    start = server.startup

    # uvicorn has no hook for the start of listening.
    async def start_and_announce(sockets: list[socket.socket] | None = None) -> None:
        await start(sockets)
        host, port = listening.getsockname()[:2]
        announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    # uvicorn's handler would close the server at the first signal, before clients fetch results.
    def stop(number: int, frame: FrameType | None) -> None:
        if service.draining:  # second signal
            server.should_exit = server.force_exit = True
        service.draining = True
        loop.call_soon_threadsafe(stopping.set)

    server.startup, server.handle_exit = start_and_announce, stop
    maintenance = asyncio.ensure_future(service.run_maintenance())
    drain = asyncio.ensure_future(_drain(service, server, stopping))
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in (maintenance, drain):  # before the models are released
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await _close(service, at_once=server.force_exit)


async def _close(service: Any, *, at_once: bool) -> None:
    """Release the models, or exit after a time limit. Files on disk are never partial."""
    try:
        async with asyncio.timeout(0 if at_once else _CLOSE_S):
            await service.close()
    except TimeoutError:
        get_logger(__name__).warning("exited while the backend was still working")
        os._exit(130 if at_once else 1)  # backend threads would keep the process alive


async def _drain(service: Any, server: Any, stopping: asyncio.Event) -> None:
    """After a stop signal: finish operations, let clients fetch results, then close."""
    await stopping.wait()
    futures, settings = service.futures, service.settings
    service.give_up_waiting()
    get_logger(__name__).info("shutting down; %d operations to finish", service.running)
    loop = asyncio.get_running_loop()
    end = loop.time() + settings.grace_s
    while service.running and loop.time() < end:
        await asyncio.sleep(0.02)
    if service.running:
        get_logger(__name__).warning("%d operations did not end within %g s", service.running, settings.grace_s)
    end = loop.time() + _FETCH_S
    while futures.count_unfetched() and loop.time() < end:
        await asyncio.sleep(0.02)
    server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; an error names the options to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only for an explicit protocol; otherwise each response waits 40 ms
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # allows a restart before old connections have timed out
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror or error}). "
            "Choose another --port (0 takes a free one) or --host."
        ) from None
    return listening
