"""Stand-ins for the providers: a real HTTP server on this machine that answers as their documentation says.

What it checks of a request is what the documentation demands (paths, headers, shapes); what it answers is fixed, unless
a test puts replies into its script. Replies can also break the connection in the ways that real ones do.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

type Body = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: Body


@dataclass(frozen=True)
class Reply:
    """What is sent back, and how it breaks."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    raw: bytes | None = None
    """Sent instead of `body` as JSON."""
    fault: str = ""
    """`reset` the connection, `truncate` the answer, `drip` it for ever, or `hang` without a word."""


class StandIn:
    """One server; `answer` makes the usual reply to a request, `script` holds replies that come first."""

    def __init__(self, answer: Callable[[Seen], Reply]) -> None:
        self.answer: Callable[[Seen], Reply] = answer
        self.script: list[Reply] = []
        self.seen: list[Seen] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.before_reply: Callable[[], object] = lambda: None
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reply_to(self, request: Seen) -> Reply:
        with self.lock:
            self.seen.append(request)
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
            scripted = self.script.pop(0) if self.script else None
        try:
            self.before_reply()
            return scripted or self.answer(request)
        finally:
            with self.lock:
                self.busy -= 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._send(stand_in.reply_to(Seen(self.path, headers, json.loads(content))))

        def _send(self, reply: Reply) -> None:
            content = json.dumps(reply.body).encode() if reply.raw is None else reply.raw
            if reply.fault == "reset":
                self._reset()
                return
            if reply.fault == "hang":
                stand_in.closing.wait(20)
                self._reset()
                return
            self.send_response(reply.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content) + (100 if reply.fault else 0)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.fault == "drip":
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if stand_in.closing.wait(0.05):
                        break
            else:
                self.wfile.write(content)
            if reply.fault:
                self.close_connection = True

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def finish(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serving(answer: Callable[[Seen], Reply]) -> Generator[StandIn]:
    server = StandIn(answer)
    try:
        yield server
    finally:
        server.close()


def openai_answer(request: Seen) -> Reply:
    """`POST /chat/completions`: a chat completion that repeats the last message."""
    if not request.path.endswith("/chat/completions"):
        return Reply(404, {"error": {"message": f"Invalid URL (POST {request.path})", "type": "invalid_request_error"}})
    message = {"role": "assistant", "content": _echo(request.body["messages"][-1]["content"]), "refusal": None}
    return Reply(body=openai_body(message))


def openai_body(message: Body, finish: str = "stop", **more: Any) -> Body:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4.1-2025-04-14",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": 10,
            "total_tokens": 1010,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        },
        "service_tier": "default",
        **more,
    }


def _echo(content: Any) -> str:
    blocks: list[Any] = content if isinstance(content, list) else [{"text": content}]
    return f"You said: {''.join(str(block.get('text', '')) for block in blocks)}"
