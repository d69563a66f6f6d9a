"""Operations of a server: health, readiness, metrics, an access log, and request ids.

    app = Operations(app, ready=lambda: "draining" if service.draining else "", gauges=service.gauges)

`/health`, `/ready` and `/metrics` need no key: they contain only counts, no requests or responses.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import show
from ..log import get_logger

PATHS: Final = ("/health", "/ready", "/metrics")
HEADER: Final = b"x-request-id"
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_CLIENT_LEFT: Final = 499
"""nginx's status for a client that disconnected."""


@dataclass(slots=True)
class _Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self.total_s += seconds


class Operations:
    """ASGI middleware around an application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ready: Callable[[], str] = lambda: "",
        gauges: Callable[[], Mapping[str, float]] = dict[str, float],
    ) -> None:
        self.app = app
        self._ready, self._gauges = ready, gauges
        self._requests = Counter[tuple[str, str, int]]()
        """Number of requests by method, route and status."""
        self._durations: dict[str, _Durations] = {}
        """Durations of requests by route."""
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] in PATHS and scope["method"] in ("GET", "HEAD"):
            await self._answer(scope["path"], send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = dict(scope["headers"]).get(HEADER, b"")
        request_id = header if _ID.fullmatch(header) else secrets.token_hex(8).encode()
        scope["request_id"] = request_id.decode()
        status, started = _CLIENT_LEFT, time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [item for item in message.get("headers", []) if item[0].lower() != HEADER]
                message = {**message, "headers": [*headers, (HEADER, request_id)]}
            await send(message)

        self._running += 1
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            self._running -= 1
            self._note(scope, status, time.monotonic() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = _route(scope)
        self._requests[scope["method"], route, status] += 1
        self._durations.setdefault(route, _Durations()).add(seconds)
        client = (scope.get("client") or ("?",))[0]
        get_logger(__name__).info(
            '%s "%s %s" %d %.3fs id=%s', client, scope["method"], show(scope["path"])[1:-1], status, seconds,
            scope["request_id"],
        )  # fmt: skip

    async def _answer(self, path: str, send: Send) -> None:
        status, kind = 200, b"application/json"
        if path == "/metrics":
            body, kind = self.describe(), b"text/plain; version=0.0.4; charset=utf-8"
        elif path == "/ready" and (reason := await asyncio.to_thread(self._ready)):
            status, body = 503, json.dumps({"status": reason})
        else:
            body = json.dumps({"status": "ready" if path == "/ready" else "ok"})
        headers = [(b"content-type", kind), (b"content-length", str(len(body.encode())).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    def describe(self) -> str:
        """All metrics in Prometheus' text format."""
        lines = ["# TYPE evsys_http_requests_total counter"]
        for (method, route, status), count in sorted(self._requests.items()):
            lines.append(f"evsys_http_requests_total{_labels(method=method, route=route, status=status)} {count}")
        lines.append("# TYPE evsys_http_request_duration_seconds histogram")
        for route, durations in sorted(self._durations.items()):
            below = 0
            for limit, count in zip([*map(str, _BUCKETS_S), "+Inf"], durations.counts, strict=True):
                below += count
                lines.append(f"evsys_http_request_duration_seconds_bucket{_labels(route=route, le=limit)} {below}")
            lines.append(f"evsys_http_request_duration_seconds_sum{_labels(route=route)} {durations.total_s:.6f}")
            lines.append(f"evsys_http_request_duration_seconds_count{_labels(route=route)} {below}")
        gauges = {"evsys_http_requests_in_progress": self._running, **self._gauges()}
        for name, value in sorted(gauges.items()):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {kind}", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _route(scope: MutableMapping[str, Any]) -> str:
    """The path with parameter names, to limit the number of metric series."""
    if "endpoint" not in scope:
        return "other"
    path = str(scope["path"])
    for name, value in scope.get("path_params", {}).items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path


def _labels(**values: Any) -> str:
    escaped = {
        name: str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in values.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
