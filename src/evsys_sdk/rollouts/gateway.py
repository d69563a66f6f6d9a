"""Serves the policy of one rollout over HTTP: chat completions, messages, responses and completions.

A gateway exists for one rollout, on loopback and, for a sandbox without a network, on a Unix socket. Requests need the
rollout's credential; every answer is a turn of the recorder, with the sampled tokens.

    async with Gateway(recorder, budget=GatewayBudget(max_turns=50)) as gateway:
        await environment.exec("my-agent", env=gateway.variables())

The recipe sets the sampling params: temperature, top_p and max_tokens of a request have no effect. Options that would
change the policy's distribution (a forced call, a schema) are refused. A repeated request gets the same answer, because
clients retry after a lost connection. Streams send tokens as they are sampled if the backend runs on this machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import h11  # comes with httpx

from ..errors import DataError
from ..inference.conversation import message_text
from ..inference.messages import calls_of
from ..inference.protocols import CHAT_EXCHANGES, describe_error
from ..inference.protocols.completions import TextCompletion
from ..inference.protocols.exchange import (
    ChatQuery,
    Exchange,
    Query,
    Reply,
    RequestRefused,
    TextQuery,
    chat_reply,
    read_object,
)
from ..inference.token_buffer import RAW
from ..log import get_logger
from .policy import RecordingPolicy
from .rollout import Message, Policy, TruncatedError, Turn

MODEL = "policy"
"""The model name for programs; any other name works too."""
_LONGEST_BODY = 64 * 1024 * 1024
_COUNT_PATH = "/v1/messages/count_tokens"
_EXCHANGES: dict[str, type[Exchange[Any]]] = {**CHAT_EXCHANGES, TextCompletion.path: TextCompletion}


@dataclass(frozen=True, slots=True)
class GatewayBudget:
    """Limits on a program's requests; the engine limits its time."""

    max_turns: int = 200
    """Number of answers."""
    max_tokens: int | None = None
    """Sampled tokens of all answers."""


class Gateway:
    """A server for one rollout."""

    def __init__(
        self,
        policy: Policy,
        budget: GatewayBudget | None = None,
        *,
        paths: Sequence[str] = (),
        socket: Path | None = None,
    ) -> None:
        self._policy = policy
        self._budget = budget or GatewayBudget()
        self._paths = tuple(paths) or tuple(_EXCHANGES)
        self.socket = socket
        self.credential = f"evsys-{secrets.token_urlsafe(24)}"
        self.port = 0
        self.exhausted = asyncio.Event()
        """Set when the budget is used up; further requests are refused."""
        self.messages: list[Message] = []
        """The longest conversation; sub-agents have shorter ones."""
        self._turns = self._tokens = 0
        self._answers: dict[bytes, _GrowingAnswer] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL, without the `/v1` that OpenAI's clients append."""
        return f"http://127.0.0.1:{self.port}"

    def variables(self) -> dict[str, str]:
        """The environment variables that direct clients of the supported APIs to this gateway."""
        local_hosts = "127.0.0.1,localhost"
        return {
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_BASE": f"{self.url}/v1",
            "OPENAI_API_KEY": self.credential,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.credential,
            "NO_PROXY": local_hosts,
            "no_proxy": local_hosts,
        }

    async def __aenter__(self) -> Self:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        if self.socket is not None:
            self._servers.append(await asyncio.start_unix_server(self._connect, self.socket))
            os.chmod(self.socket, 0o666)  # the sandbox has another user; the credential controls access
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()
        tasks: list[asyncio.Task[Any]] = [*self._connections, *(answer.task for answer in self._answers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.socket is not None:
            self.socket.unlink(missing_ok=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        try:
            await _Connection(reader, writer, self._respond).run()
        except asyncio.CancelledError:  # the rollout has ended; suppress asyncio's message about the connection
            pass
        except (ConnectionError, h11.ProtocolError, asyncio.IncompleteReadError) as error:
            get_logger(__name__).debug("a connection to the gateway ended: %s", error)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _respond(self, request: h11.Request, body: bytes) -> _Response:
        path = request.target.decode("ascii", "replace").partition("?")[0].rstrip("/")
        try:
            self._check(request)
            if path == "/v1/models":
                listed = {"id": MODEL, "object": "model", "type": "model", "created": 0, "owned_by": "evsys"}
                return _Response.of(200, {"object": "list", "data": [listed], "has_more": False})
            kind = _EXCHANGES.get(path.removesuffix("/count_tokens") if path == _COUNT_PATH else path)
            if kind is None or request.method != b"POST" or kind.path not in self._paths:
                raise RequestRefused(f"unknown path {path}. Use {', '.join(self._paths)}.", status=404)
            exchange = kind.read(read_object(body))
            if path == _COUNT_PATH:  # an estimate: the gateway has no tokenizer
                return _Response.of(200, {"input_tokens": len(body) // 4})
            answer = self._start(_read_chat(exchange.query))
            if exchange.query.stream and await answer.has_begun():
                return _Response(200, b"text/event-stream", self._stream(exchange, answer))
            turn = await answer.turn()
        except Exception as error:
            return _Response.of(*_describe(error, path))
        return _write(exchange, turn)

    async def _stream(self, exchange: Exchange[Any], answer: _GrowingAnswer) -> AsyncIterator[bytes]:
        yield b"".join(exchange.start(0))
        async for text in answer.texts():
            if parts := exchange.grow(0, text):
                yield b"".join(parts)
        try:
            turn = await answer.turn()
        except Exception as error:  # the status has already been sent
            yield exchange.fail(_describe(error, exchange.path)[0], "the policy failed.")
            return
        ending = exchange.close(0, _reply(exchange, turn))
        yield b"".join([*ending, *exchange.finish(turn.input_tokens, turn.output_tokens)])

    def _check(self, request: h11.Request) -> None:
        headers = {name.lower(): value for name, value in request.headers}
        credential = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(credential, self.credential.encode()):
            raise RequestRefused("wrong credential for this rollout.", status=401)

    def _start(self, query: ChatQuery) -> _GrowingAnswer:
        _refuse_unsupported(query)
        key = hashlib.blake2b(json.dumps([query.messages, query.tools], sort_keys=True, default=str).encode()).digest()
        answer = self._answers.get(key)
        if answer is None or answer.has_failed:  # a retry after a failure may succeed
            self._spend()
            answer = self._answers[key] = _GrowingAnswer()
            answer.start(self._act(query, answer))
        return answer

    def _spend(self) -> None:
        budget = self._budget
        is_over = self._turns >= budget.max_turns or (
            budget.max_tokens is not None and self._tokens >= budget.max_tokens
        )
        if is_over:
            self.exhausted.set()
            raise RequestRefused("the budget of this rollout is used up.", status=403, code="budget_spent")
        self._turns += 1

    async def _act(self, query: ChatQuery, answer: _GrowingAnswer) -> Turn:
        policy = self._policy
        more: dict[str, Any] = {"on_text": answer.grow} if isinstance(policy, RecordingPolicy) and query.stream else {}
        turn = await policy.act(query.messages, tools=query.tools or None, **more)
        self._tokens += turn.output_tokens
        if len(query.messages) + 1 >= len(self.messages):
            self.messages = [*query.messages, turn.message]
        return turn


class _GrowingAnswer:
    """An answer being sampled; equal requests share it."""

    task: asyncio.Task[Turn]

    def __init__(self) -> None:
        self._text = ""
        self._grown = asyncio.Event()

    def start(self, acting: Coroutine[Any, Any, Turn]) -> None:
        self.task = asyncio.create_task(acting)
        self.task.add_done_callback(lambda _: self._grown.set())

    @property
    def has_failed(self) -> bool:
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    async def turn(self) -> Turn:
        # Shielded: a client that disconnects and retries gets the same answer.
        return await asyncio.shield(self.task)

    def grow(self, text: str) -> None:
        """Set the part of the text that can be shown."""
        grown, self._text, self._grown = self._grown, text, asyncio.Event()
        if self.task.done():
            self._grown.set()
        grown.set()

    async def has_begun(self) -> bool:
        """Wait for the first text; False if there is none before the end."""
        await self._grown.wait()
        return not self.task.done()

    async def texts(self) -> AsyncIterator[str]:
        """The text as it grows, until the answer has ended."""
        while not self.task.done():
            grown = self._grown
            yield self._text
            await grown.wait()


def _describe(error: Exception, path: str) -> tuple[int, Any]:
    """Status and body of an error."""
    match error:
        case RequestRefused():
            return error.status, describe_error(path, error.status, str(error), error.param, error.code)
        case TruncatedError():
            return 400, describe_error(path, 400, f"prompt is too long: {error}", "messages", "context_length_exceeded")
        case DataError():
            return 400, describe_error(path, 400, str(error), "messages")
        case _:  # the recorder keeps the error, and the engine reports it
            get_logger(__name__).debug("the policy failed", exc_info=error)
            return 503, describe_error(path, 503, "the policy failed.")


def _read_chat(query: Query) -> ChatQuery:
    """A query as a conversation; a text to continue becomes one raw message."""
    if isinstance(query, ChatQuery):
        return query
    assert isinstance(query, TextQuery)
    if len(query.prompts) != 1 or not isinstance(query.prompts[0], str) or query.echo:
        raise RequestRefused("only a single text prompt without echo is supported.", param="prompt")
    return ChatQuery(
        model=query.model,
        stops=query.stops,
        samples=query.samples,
        logprobs=query.logprobs,
        messages=[{"role": RAW, "content": query.prompts[0]}],
    )


def _refuse_unsupported(query: ChatQuery) -> None:
    options = {
        "tool_choice": bool(query.forced),
        "response_format": query.output_schema is not None,
        "stop": bool(query.stops),
        "n": query.samples != 1,
        "logprobs": query.logprobs is not None,
    }
    for name, is_set in options.items():
        if is_set:
            raise RequestRefused(
                f"{name} is not supported, because it would change the policy's distribution. Leave it out.", param=name
            )


def _write(exchange: Exchange[Any], turn: Turn) -> _Response:
    replies = [_reply(exchange, turn)]
    if exchange.query.stream:
        return _Response(200, b"text/event-stream", b"".join(exchange.replay(replies, turn.input_tokens)))
    return _Response.of(200, exchange.answer(replies, turn.input_tokens))


def _reply(exchange: Exchange[Any], turn: Turn) -> Reply:
    message = turn.message
    calls = calls_of(message)
    reason = "length" if turn.stop_reason == "length" else "tool_calls" if calls else "stop"
    make = chat_reply if isinstance(exchange.query, ChatQuery) else Reply
    return make(message_text(message, 0), reason, turn.output_tokens, calls)


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    kind: bytes
    body: bytes | AsyncIterator[bytes]

    @classmethod
    def of(cls, status: int, value: Any) -> _Response:
        return cls(status, b"application/json", json.dumps(value, ensure_ascii=False).encode())


class _Connection:
    """Serves one client's requests sequentially."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, respond: Any) -> None:
        self._reader, self._writer, self._respond = reader, writer, respond
        self._wire = h11.Connection(h11.SERVER)

    async def run(self) -> None:
        while True:
            try:
                if not isinstance(request := await self._next(), h11.Request):
                    return
                response = await self._respond(request, await self._body())
            except h11.RemoteProtocolError as error:
                status, message = error.error_status_hint, f"invalid HTTP request: {error}."
                response = _Response.of(status, describe_error("", status, message))
            await self._send(response)
            if self._wire.our_state is not h11.DONE or self._wire.their_state is not h11.DONE:
                return
            self._wire.start_next_cycle()

    async def _next(self) -> Any:
        while (event := self._wire.next_event()) is h11.NEED_DATA:
            if self._wire.they_are_waiting_for_100_continue:
                self._writer.write(self._wire.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._wire.receive_data(await self._reader.read(65536))
        return event

    async def _body(self) -> bytes:
        parts, size = list[bytes](), 0
        while isinstance(part := await self._next(), h11.Data):
            parts.append(bytes(part.data))
            size += len(part.data)
            if size > _LONGEST_BODY:
                raise h11.RemoteProtocolError(f"the body has more than {_LONGEST_BODY} bytes", 413)
        return b"".join(parts)

    async def _send(self, response: _Response) -> None:
        headers, body = [(b"content-type", response.kind)], response.body
        if isinstance(body, bytes):
            headers.append((b"content-length", str(len(body)).encode()))
        self._write(h11.Response(status_code=response.status, headers=headers))
        if isinstance(body, bytes):
            self._write(h11.Data(data=body))
        else:
            async for part in body:
                self._write(h11.Data(data=part))
                await self._writer.drain()
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._wire.send(event) or b"")
