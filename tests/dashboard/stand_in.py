"""A stand-in for the dashboard's server out of the standard library: it keeps streams as the real one does."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PREFIX = "/api/dashboard/api"
KEY = "evk_test_not-a-real-secret-value"


class StandIn:
    """Streams by id; `answer_with` makes it refuse or fail, `lose_answers` stores a batch and hangs up."""

    def __init__(self) -> None:
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.requests: list[dict[str, Any]] = []
        """What is asked of whoever sends."""
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and headers of every request."""
        self.answer_with: int | None = None
        self.reject: str | None = None
        """Kind of records that are quarantined."""
        self.lose_answers = 0
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Everything that was stored, stream by stream."""
        with self.lock:
            streams = [record for stream in self.streams.values() for record in stream]
        return [record for record in streams if kind in (None, record["kind"])]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self, stream: str, seq: int, body: bytes) -> tuple[int, dict[str, Any]] | None:
        """Store what is new; None hangs up afterwards."""
        with self.lock:
            known = self.streams.setdefault(stream, [])
            if seq > len(known):
                return 409, {"error": "gap", "message": "a gap", "next": len(known)}
            first = len(known)
            fresh = [json.loads(line) for line in body.split(b"\n") if line][len(known) - seq :]
            known += fresh
            if self.lose_answers:
                self.lose_answers -= 1
                return None
            rejected = [
                {"seq": first + at, "reason": "not wanted"}
                for at, one in enumerate(fresh)
                if one["kind"] == self.reject
            ]
            return 200, {"next": len(known), "rejected": rejected, "requests": self.requests}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                parts = urlsplit(self.path)
                owner.seen.append(("POST", self.path, dict(self.headers)))
                if owner.answer_with is not None:
                    self._answer(owner.answer_with, {"error": "refused", "message": f"no, {KEY} is not welcome"})
                elif self.headers.get("Authorization") != f"Bearer {KEY}":
                    self._answer(401, {"error": "unauthorized", "message": "send a valid key"})
                else:
                    stream = parts.path.removeprefix(f"{PREFIX}/sdk/streams/").strip("/")
                    response = owner.take(stream, int(parse_qs(parts.query)["seq"][0]), body)
                    if response is None:
                        self.close_connection = True
                    else:
                        self._answer(*response)

            def _answer(self, status: int, value: dict[str, Any]) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
