"""A stand-in for a model on loopback: it answers the Messages and the Responses protocol by a script.

with StandIn(script) as server:
    ...                    # a real coding agent talks to server.url
server.requests            # every request body, in order

A script is a generator: it yields an `Act` (a tool to call) or text (which ends the turn), and is sent what came of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, cast

type Json = dict[str, Any]
type Script = Generator[Act | str, str, None]


@dataclass(frozen=True)
class Act:
    """A tool that the model wants called."""

    tool: str
    given: Json


class StandIn:
    """The server; `begin` makes the script of a session when its first request with tools comes."""

    def __init__(self, begin: Callable[[], Script]) -> None:
        self._begin, self._script = begin, None
        self._lock = threading.Lock()
        self.requests: list[Json] = []
        self.results: list[str] = []
        """What the tools answered, in order."""
        self.failure: BaseException | None = None
        self._count = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                outer._answer(self, body)

            def do_GET(self) -> None:
                self.send_response(404)
                self.end_headers()

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tool_names(self) -> set[str]:
        """Every tool that was offered."""
        return {name for body in self.requests for name in _names(body)}

    def text(self) -> str:
        """Everything that was sent, as text."""
        return "\n".join(json.dumps(body, ensure_ascii=False) for body in self.requests)

    def _answer(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        path = handler.path.partition("?")[0]
        with self._lock:
            self.requests.append(body)
            if path.endswith("/count_tokens"):
                _send_json(handler, {"input_tokens": 1})
                return
            act = self._next(body)
            self._count += 1
        if path.endswith("/responses"):
            _send_events(handler, _responses(act, self._count))
        elif body.get("stream"):
            _send_events(handler, _messages(act, self._count, body.get("model", "")))
        else:
            _send_json(handler, _whole_message(act, self._count, body.get("model", "")))

    def _next(self, body: Json) -> Act | str:
        if not _names(body):  # a title, a summary: not the session itself
            return "ok"
        try:
            if self._script is None:
                self._script = self._begin()
                return next(self._script)
            result = _last_result(body)
            self.results.append(result)
            return self._script.send(result)
        except StopIteration:
            return "done"
        except BaseException as error:  # the test says so after the session has ended
            self.failure = error
            return f"the script failed: {error}"


def _names(body: Json) -> list[str]:
    names: list[str] = []
    for tool in body.get("tools") or []:
        inner = tool.get("tools")
        if isinstance(inner, list):
            names += [f"{tool.get('name')}/{one.get('name')}" for one in cast("list[Json]", inner)]
        elif tool.get("name"):
            names.append(tool["name"])
    return names


def _last_result(body: Json) -> str:
    """What the latest tool answered."""
    for item in reversed(body.get("input") or []):
        if isinstance(item, dict) and item.get("type") in ("function_call_output", "custom_tool_call_output"):
            return _plain(item.get("output"))
    for message in reversed(body.get("messages") or []):
        content = message.get("content")
        for block in reversed(content if isinstance(content, list) else []):
            if block.get("type") == "tool_result":
                return _plain(block.get("content"))
    return ""


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in cast("list[Json]", content))
    if isinstance(content, dict):
        return _plain(cast("Json", content).get("content"))
    return str(content)


def _messages(act: Act | str, number: int, model: str) -> list[tuple[str, Json]]:
    whole = _whole_message(act, number, model)
    block = whole["content"][0]
    if isinstance(act, Act):
        start = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(act.given)}
    else:
        start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": act}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    return [
        ("message_start", {"message": {**whole, "content": [], "stop_reason": None}}),
        ("content_block_start", {"index": 0, "content_block": start}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": end, "usage": {"output_tokens": 1}}),
        ("message_stop", {}),
    ]


def _whole_message(act: Act | str, number: int, model: str) -> Json:
    if isinstance(act, Act):
        block: Json = {"type": "tool_use", "id": f"toolu_{number}", "name": act.tool, "input": act.given}
    else:
        block = {"type": "text", "text": act}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [block],
        "stop_reason": "tool_use" if isinstance(act, Act) else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _responses(act: Act | str, number: int) -> list[tuple[str, Json]]:
    if isinstance(act, Act):
        space, _, name = act.tool.rpartition("/")
        item: Json = {"type": "function_call", "call_id": f"call_{number}", "name": name}
        item |= {"arguments": json.dumps(act.given), **({"namespace": space} if space else {})}
    else:
        item = {"type": "message", "role": "assistant", "id": f"item_{number}"}
        item["content"] = [{"type": "output_text", "text": act}]
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return [
        ("response.created", {"response": {"id": f"resp_{number}"}}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": {"id": f"resp_{number}", "usage": usage}}),
    ]


def _send_json(handler: BaseHTTPRequestHandler, body: Json) -> None:
    data = json.dumps(body).encode()
    handler.send_response(200)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _send_events(handler: BaseHTTPRequestHandler, events: list[tuple[str, Json]]) -> None:
    data = "".join(f"event: {name}\ndata: {json.dumps({'type': name, **body})}\n\n" for name, body in events).encode()
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
