"""The routes of OpenAI's and Anthropic's APIs on the models of this server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...errors import EvsysError, show
from ...inference.protocols import CHAT_EXCHANGES
from ...inference.protocols.chat_completions import ChatCompletion
from ...inference.protocols.completions import TextCompletion
from ...inference.protocols.exchange import ChatQuery, Exchange, Query, Reply, RequestRefused, TextQuery, read_object
from ...inference.protocols.messages import AnthropicMessage
from ...log import get_logger
from ..answer import Refusal, answer_json
from ..trace_log import ServedAnswer
from .drawing import AnswerRequest

if TYPE_CHECKING:
    from ..service import Service

_FORMAT: Final = "text/event-stream"
FEEDBACK: Final = "/v1/feedback"


async def models(service: Service, request: Request, body: bytes) -> Response:
    """`GET /v1/models`."""
    return answer_json({"object": "list", "data": await service.offered.describe_all()})


async def model(service: Service, request: Request, body: bytes) -> Response:
    """`GET /v1/models/{name}`."""
    name = request.path_params["name"]
    await service.offered.open(name)
    return answer_json({"id": name, "object": "model", "created": 0, "owned_by": "evsys"})


async def chat(kind: type[Exchange[ChatQuery]], service: Service, request: Request, body: bytes) -> Response:
    """Continue a conversation, for all chat APIs."""
    exchange = kind.read(read_object(body))
    query = exchange.query
    offered = await service.offered.open(query.model)
    exchange.model = offered.name
    if query.forced or query.output_schema is not None:
        # On a thread: the first grammar of a large vocabulary takes seconds.
        drawing = await asyncio.to_thread(AnswerRequest.of_chat, service, offered, query, _client(request))
    else:
        drawing = AnswerRequest.of_chat(service, offered, query, _client(request))

    def keep(replies: Sequence[Reply]) -> None:
        if service.log is not None:  # as a chat completion, for every API
            completion = ChatCompletion(query)
            completion.model, completion.id = exchange.model, exchange.id
            answer = completion.answer(replies, len(drawing.prompt))
            service.log.keep(ServedAnswer(exchange.id, query.model, query.messages, query.metadata, answer), len(body))

    return await _answer(service, exchange, [drawing], keep)


async def count_tokens(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/messages/count_tokens`."""
    query = AnthropicMessage.read(read_object(body)).query
    offered = await service.offered.open(query.model)
    return answer_json({"input_tokens": len(AnswerRequest.of_chat(service, offered, query, "").prompt)})


async def completions(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/completions`."""
    exchange = TextCompletion.read(read_object(body))
    query = exchange.query
    offered = await service.offered.open(query.model)
    exchange.model = offered.name
    encode = partial(offered.client.tokenizer.encode, add_special_tokens=False)
    prompts = [encode(text) if isinstance(text, str) else text for text in query.prompts]
    return await _answer(
        service, exchange, [AnswerRequest.of(service, offered, query, prompt, _client(request)) for prompt in prompts]
    )


async def feedback(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/feedback`: feedback about an answer, by its id."""
    if service.log is None:
        raise RequestRefused(
            "this server keeps no traces that feedback could be about. Start it with --traces.", status=404
        )
    fields = read_object(body)
    try:
        async with service.feedback_turn:  # one at a time, because it may block a thread
            status = await asyncio.to_thread(service.log.take_feedback, fields)
    except EvsysError as error:
        raise RequestRefused(str(error)) from None
    if status is None:
        message = f"no answer of this server has the id {show(fields.get('response_id'))}."
        raise RequestRefused(message, status=404, param="response_id", code="response_not_found")
    return answer_json({"object": "feedback", **status})


def _client(request: Request) -> str:
    """The client for fair sharing: its key if clients have keys, else its address."""
    host = request.client.host if request.client else "?"
    return f"openai:{request.headers.get('authorization', '')[-64:]}:{host}"


type FollowUp = Callable[[Sequence[Reply]], None]
"""Called with complete answers."""


async def _answer(
    service: Service, exchange: Exchange[Any], drawings: list[AnswerRequest], follow_up: FollowUp = lambda replies: None
) -> Response:
    if exchange.query.stream:
        service.check_sampling_room()  # before the status is sent
        return StreamingResponse(_stream(service, exchange, drawings, follow_up), media_type=_FORMAT)
    async with service.admit_sampling():
        replies = await _complete(exchange, drawings)
    follow_up(replies)
    return answer_json(exchange.answer(replies, _count(service, drawings, replies)))


def _count(service: Service, drawings: list[AnswerRequest], replies: Sequence[Reply]) -> int:
    """Count the tokens of prompts and answers."""
    prompt_tokens = sum(len(drawing.prompt) for drawing in drawings)
    service.count_tokens(prompt_tokens, sum(reply.tokens for reply in replies))
    return prompt_tokens


async def _complete(exchange: Exchange[Query], drawings: list[AnswerRequest]) -> list[Reply]:
    """Complete answers: the requested number of samples per prompt."""
    answers_by_prompt = await asyncio.gather(*(drawing.draw(exchange.query.samples) for drawing in drawings))
    repeats = isinstance(exchange.query, TextQuery) and exchange.query.echo
    scored = await asyncio.gather(
        *(drawing.score_prompt() for drawing in drawings if repeats and exchange.query.logprobs is not None)
    )
    prompts = scored or [[] for _ in drawings]
    return [
        drawing.reply(answer, prompt)
        for drawing, answers, prompt in zip(drawings, answers_by_prompt, prompts, strict=True)
        for answer in answers
    ]


async def _stream(
    service: Service, exchange: Exchange[Any], drawings: list[AnswerRequest], follow_up: FollowUp
) -> AsyncIterator[bytes]:
    """The events of a stream; later errors are events too, because the status has been sent."""
    try:
        async with service.admit_sampling():
            async for part in _grow(service, exchange, drawings, follow_up):
                yield part
    except (Refusal, RequestRefused) as refused:
        yield exchange.fail(refused.status, str(refused))
    except Exception as error:
        get_logger(__name__).error("a stream failed", exc_info=error)
        yield exchange.fail(500, "internal error; the server's log has the cause.")


async def _grow(
    service: Service, exchange: Exchange[Any], drawings: list[AnswerRequest], follow_up: FollowUp
) -> AsyncIterator[bytes]:
    samples = exchange.query.samples
    owners = [drawing for drawing in drawings for _ in range(samples)]
    replies, logged = dict[int, Reply](), [0] * len(owners)
    for part in exchange.start(sum(len(drawing.prompt) for drawing in drawings)):
        yield part
    async for at, answer in _interleave([drawing.stream(at % samples) for at, drawing in enumerate(owners)]):
        drawing, scores = owners[at], owners[at].scores(answer, logged[at])
        logged[at] += len(scores)
        if answer.reason:
            replies[at] = drawing.reply(answer)
            parts = exchange.close(at, replies[at], scores)
        else:
            parts = exchange.grow(at, drawing.shown(answer), scores)
        for part in parts:
            yield part
    ended = [replies[at] for at in range(len(owners))]
    follow_up(ended)  # before the last event, after which the client may disconnect
    for part in exchange.finish(_count(service, drawings, ended), sum(reply.tokens for reply in ended)):
        yield part


async def _interleave[T](sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Merge several streams in order of arrival."""
    waiting = {asyncio.ensure_future(anext(source)): at for at, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                at = waiting.pop(task)
                with contextlib.suppress(StopAsyncIteration):
                    yield at, task.result()
                    waiting[asyncio.ensure_future(anext(sources[at]))] = at
    finally:  # stop sampling if the client has disconnected
        for task in waiting:
            task.cancel()


type Handler = Callable[[Any, Request, bytes], Awaitable[Response]]
TABLE: Final[list[tuple[str, str, Handler]]] = [
    *(("POST", path, partial(chat, kind)) for path, kind in CHAT_EXCHANGES.items()),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", FEEDBACK, feedback),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", model),
]
PREFIXES: Final = ("/v1/",)
"""Paths whose errors have the format of their API."""
