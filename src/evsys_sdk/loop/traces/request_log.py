"""What our own server is asked and answers, as traces: `evsys serve --traces support`.

It stands before the server's application and listens to chat completions, streamed or not. An answer is never held up:
what was said is added to the store by a thread of its own, and in a crowd too large for that it is dropped and counted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json

from ...errors import DataError, EvsysError, show
from ...log import get_logger
from .feedback import GivenFeedback
from .feedback_log import FeedbackLog
from .formats import openai_chat
from .store import LiveStore
from .trace import RewardRule, as_list, as_object

PATH: Final = "/v1/chat/completions"
_LONGEST: Final = 4_000_000
_MOST_WAITING: Final = 10_000
_AT_ONCE: Final = 500
_LONGEST_WAIT_S: Final = 2.0

type Event = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Event]]
type Send = Callable[[Event], Awaitable[None]]
type Application = Callable[[Any, Receive, Send], Awaitable[None]]


class RequestLog:
    """Keeps what is said; wrap an application with it, and close it at the end."""

    def __init__(self, store: LiveStore, rules: Sequence[RewardRule] = ()) -> None:
        self._store = store
        self._feedback = FeedbackLog(store, rules=rules)
        self._waiting: queue.Queue[_Heard | threading.Event | None] = queue.Queue(_MOST_WAITING)
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def wrap(self, app: Application) -> Application:
        """The application, listened to."""

        async def listen(scope: Any, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == PATH:
                heard = _Exchange(receive, send)
                await app(scope, heard.receive, heard.send)
                if heard.status == 200 and not heard.is_too_long:
                    self._keep(_Heard(time.time(), b"".join(heard.asked), b"".join(heard.answered)))
            else:
                await app(scope, receive, send)

        return listen

    def take_feedback(self, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        """Keep what somebody thought of an answer that was kept; None where there is no such answer."""
        try:
            given = GivenFeedback.model_validate(dict(fields))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the feedback"
            raise DataError(f"{place}: {first['msg']}. See docs/traces.md.") from None
        report = self._feedback.add([given], via="server")
        if report.unknown:  # perhaps it was said a moment ago
            self.settle()
            report = self._feedback.add([given], via="server")
        if report.unknown:
            return None
        if report.crowded:
            raise DataError(f"too much was said about {show(given.response_id)} already.")
        state = "known" if report.known else "changed" if report.changed else "added"
        return {"response_id": given.response_id, "state": state, "late": bool(report.late)}

    def settle(self) -> None:
        """Wait until all that was said so far is in the store, or for as long as can be expected of who waits."""
        mark = threading.Event()
        if self._keep(mark):
            mark.wait(_LONGEST_WAIT_S)

    def close(self) -> None:
        """Write what is still waiting."""
        self._waiting.put(None)
        self._thread.join()
        if self.dropped:
            get_logger(__name__).warning("%d exchanges came too quickly and are not among the traces", self.dropped)

    def _keep(self, one: _Heard | threading.Event) -> bool:
        try:
            self._waiting.put_nowait(one)
        except queue.Full:
            # A mark that finds no place is nothing that was said.
            self.dropped += not isinstance(one, threading.Event)
            return False
        return True

    def _write(self) -> None:
        is_over = False
        while not is_over:
            # Waits for one and takes what else is there by now: a
            # quiet server writes at once, a busy one many at a time.
            found = [self._waiting.get()]
            while len(found) < _AT_ONCE and not self._waiting.empty():
                found.append(self._waiting.get())
            is_over = None in found
            heard = [record for one in found if isinstance(one, _Heard) and (record := one.read()) is not None]
            try:
                if heard:
                    self._store.add(heard, openai_chat.NAME)
            except EvsysError as error:  # a full disk must not end the server
                get_logger(__name__).error("%d traces could not be kept: %s", len(heard), error)
            # After the writing: who waits for a mark may look into the file as soon as it is set.
            for one in found:
                if isinstance(one, threading.Event):
                    one.set()


@dataclass(frozen=True, slots=True)
class _Heard:
    """A request and its answer, as they went over the wire."""

    time: float
    asked: bytes
    answered: bytes

    def read(self) -> dict[str, Any] | None:
        """A record of the exchange; None where there was no whole answer."""
        try:
            request = as_object(from_json(self.asked))
            is_stream = bool(request.get("stream"))
            response = _join(self.answered) if is_stream else as_object(from_json(self.answered))
        except ValueError:
            return None
        if not as_list(response.get("choices")):
            return None
        kept = {key: request[key] for key in ("messages", "model", "metadata") if key in request}
        return {"id": response.get("id"), "time": self.time, "request": kept, "response": response}


class _Exchange:
    """One request as it passes, and its answer."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.asked: list[bytes] = []
        self.answered: list[bytes] = []
        self.status, self._size = 0, 0

    @property
    def is_too_long(self) -> bool:
        return self._size > _LONGEST

    async def receive(self) -> Event:
        event = await self._receive()
        if event["type"] == "http.request":
            self._hear(self.asked, event.get("body", b""))
        return event

    async def send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self.status = event["status"]
        elif event["type"] == "http.response.body":
            self._hear(self.answered, event.get("body", b""))
        await self._send(event)

    def _hear(self, parts: list[bytes], body: bytes) -> None:
        self._size += len(body)
        if not self.is_too_long:
            parts.append(body)


def _join(stream: bytes) -> dict[str, Any]:
    """The whole answer of a stream of pieces; of several choices the first. Nothing if the stream was not finished."""
    found: dict[str, Any] = {}
    text, calls, ended = "", dict[int, dict[str, Any]](), False
    for line in stream.split(b"\n"):
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        chunk = as_object(from_json(line[6:]))
        found |= {key: chunk[key] for key in ("id", "model", "created", "usage") if chunk.get(key) is not None}
        for choice in map(as_object, as_list(chunk.get("choices"))):
            if choice.get("index") == 0:
                delta = as_object(choice.get("delta"))
                text += delta.get("content") or ""
                ended = ended or choice.get("finish_reason") is not None
                for call in map(as_object, as_list(delta.get("tool_calls"))):
                    _grow(calls.setdefault(int(call.get("index") or 0), {"name": "", "arguments": ""}), call)
    # Somebody hung up in the middle; half an answer must not be learned from.
    if not ended:
        return {}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for _, call in sorted(calls.items())
        ]
    return {**found, "choices": [{"index": 0, "message": message}]}


def _grow(call: dict[str, Any], piece: Any) -> None:
    function = as_object(piece.get("function"))
    call["id"] = piece.get("id") or call.get("id")
    call["name"] += function.get("name") or ""
    call["arguments"] += function.get("arguments") or ""
