"""A network that fails on request: an HTTP proxy in front of a server that resets, delays or answers with an error.

    with FaultyProxy("http://127.0.0.1:8000") as proxy:
        client = connect(proxy.url)
        proxy.fail_next("/api/v1/optim_step", "reset", times=2)           # the server never sees the request
        proxy.fail_next("/api/v1/optim_step", "reset_after")              # the server does it, the answer is lost
        proxy.fail_next("/api/v1/retrieve_future", 500, times=3)
        proxy.fail_next("/api/v1/asample", "delay", delay_s=2.0)
        ...
        proxy.seen("/api/v1/optim_step")                                  # how many requests got through to the server

Needs nothing but the standard library, one thread per connection.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import urlsplit

type Fault = int | Literal["reset", "reset_after", "delay"]


@dataclass
class _Rule:
    prefix: str
    fault: Fault
    times: int
    delay_s: float


class FaultyProxy:
    """Stands between a client and a server; faultless until a fault is set."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._rules: list[_Rule] = []
        self._seen: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def fail_next(self, prefix: str, fault: Fault, *, times: int = 1, delay_s: float = 1.0) -> None:
        """Let the next `times` requests whose path starts with `prefix` fail; rules are used up in their order."""
        with self._lock:
            self._rules.append(_Rule(prefix, fault, times, delay_s))

    def retarget(self, target: str) -> None:
        """Forward to another server from now on, for instance one that was started again."""
        self._target = urlsplit(target)

    def seen(self, prefix: str) -> int:
        """How many requests were forwarded to the server."""
        return sum(count for path, count in self._seen.items() if path.startswith(prefix))

    def faults(self, prefix: str) -> int:
        """How many requests were made to fail."""
        return sum(count for path, count in self._faults.items() if path.startswith(prefix))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _fault(self, path: str) -> _Rule | None:
        with self._lock:
            for rule in self._rules:
                if path.startswith(rule.prefix):
                    rule.times -= 1
                    if not rule.times:
                        self._rules.remove(rule)
                    self._faults[path] += 1
                    return rule
        return None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 120

            def do_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                rule = proxy._fault(self.path)
                if rule is None or rule.fault == "reset_after":
                    answer = self._forward(body)
                    self._reset() if rule or answer is None else self._answer(*answer)
                elif rule.fault == "reset":
                    self._reset()
                elif rule.fault == "delay":
                    time.sleep(rule.delay_s)
                    answer = self._forward(body)
                    self._reset() if answer is None else self._answer(*answer)
                else:
                    self._answer(
                        rule.fault, {"content-type": "application/json"}, b'{"error": "injected by the proxy"}'
                    )

            do_GET = do_POST = do_PUT = do_DELETE = do_any

            def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes] | None:
                assert proxy._target.hostname
                connection = http.client.HTTPConnection(proxy._target.hostname, proxy._target.port, timeout=120)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers.items()))
                    with proxy._lock:
                        proxy._seen[self.path] += 1
                    response = connection.getresponse()
                    return response.status, dict(response.getheaders()), response.read()
                except (OSError, http.client.HTTPException):  # the server is gone, and so is the connection
                    return None
                finally:
                    connection.close()

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding", "date"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _reset(self) -> None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):  # a client that hangs up, or our own reset
                    self.close_connection = True

            def finish(self) -> None:
                try:
                    super().finish()
                except (OSError, ValueError):
                    return

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler
