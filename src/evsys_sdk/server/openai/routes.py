"""Programs that ask for answers: the APIs of OpenAI and Anthropic on the models of this server, and token ids."""

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
from ...inference.protocols.completions import TextCompletion
from ...inference.protocols.exchange import ChatQuery, Exchange, Query, RequestRefused, TextQuery
from ...inference.protocols.messages import AnthropicMessage
from ...log import get_logger
from ..answer import Refusal, answer_json
from .drawing import Drawing
from .requests import GenerateRequest, read_object

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
    """A conversation to continue, by any of the APIs for it."""
    exchange = kind.read(read_object(body))
    query = exchange.query
    offered = await service.offered.open(query.model)
    exchange.model = offered.name
    if query.forced or query.output_schema is not None:
        # On a thread: the first grammar of a large vocabulary takes seconds.
        drawing = await asyncio.to_thread(Drawing.of_chat, service, offered, query, _client(request))
    else:
        drawing = Drawing.of_chat(service, offered, query, _client(request))

    return await _answer(service, exchange, [drawing])


async def count_tokens(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/messages/count_tokens`."""
    query = AnthropicMessage.read(read_object(body)).query
    offered = await service.offered.open(query.model)
    return answer_json({"input_tokens": len(Drawing.of_chat(service, offered, query, "").prompt)})


async def completions(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/completions`."""
    exchange = TextCompletion.read(read_object(body))
    query = exchange.query
    offered = await service.offered.open(query.model)
    exchange.model = offered.name
    encode = partial(offered.client.tokenizer.encode, add_special_tokens=False)
    prompts = [encode(one) if isinstance(one, str) else one for one in query.prompts]
    return await _answer(
        service, exchange, [Drawing.of(service, offered, query, prompt, _client(request)) for prompt in prompts]
    )


async def generate(service: Service, request: Request, body: bytes) -> Response:
    """`POST /inference/v1/generate`: ids in, ids and log-probabilities out."""
    asked = GenerateRequest.read(read_object(body))
    offered, ends = await service.offered.open(asked.model), asked.sampling_params.stop_token_ids
    query = asked.query()
    drawing = Drawing.of(service, offered, query, asked.token_ids, _client(request))
    if ends:
        drawing = drawing.stop_at(ends)
    async with service.admit_sampling():
        answers = await drawing.draw(query.samples)
    choices = [
        {
            "index": at,
            "token_ids": answer.tokens,
            "logprobs": {
                "content": [{"token": f"token_id:{token}", "logprob": value} for token, value, _ in answer.scored]
            },
            "finish_reason": answer.reason,
        }
        for at, answer in enumerate(answers)
    ]
    read, written = len(asked.token_ids), sum(len(answer.tokens) for answer in answers)
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return answer_json({"request_id": asked.request_id, "choices": choices, "usage": usage})


async def feedback(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/feedback`: what somebody thought of an answer, by its id."""
    if service.log is None:
        raise RequestRefused(
            "this server keeps no traces that feedback could be about. Start it with --traces.", status=404
        )
    fields = read_object(body)
    try:
        async with service.feedback_turn:  # it may wait, and threads are few
            taken = await asyncio.to_thread(service.log.take_feedback, fields)
    except EvsysError as error:
        raise RequestRefused(str(error)) from None
    if taken is None:
        told = f"no answer of this server has the id {show(fields.get('response_id'))}."
        raise RequestRefused(told, status=404, param="response_id", code="response_not_found")
    return answer_json({"object": "feedback", **taken})


def _client(request: Request) -> str:
    """Who asks, for fair turns: the key where clients have their own, else the machine."""
    host = request.client.host if request.client else "?"
    return f"openai:{request.headers.get('authorization', '')[-64:]}:{host}"


async def _answer(service: Service, exchange: Exchange[Any], drawings: list[Drawing]) -> Response:
    if exchange.query.stream:
        service.check_sampling_room()  # before the status has gone out
        events = _admit_stream(service, exchange, _stream(exchange, drawings))
        return StreamingResponse(events, media_type=_FORMAT)
    async with service.admit_sampling():
        return answer_json(await _complete(exchange, drawings))


async def _complete(exchange: Exchange[Query], drawings: list[Drawing]) -> dict[str, Any]:
    """The whole answer: of each prompt as many samples as are asked for."""
    found = await asyncio.gather(*(drawing.draw(exchange.query.samples) for drawing in drawings))
    repeats = isinstance(exchange.query, TextQuery) and exchange.query.echo
    scored = await asyncio.gather(
        *(drawing.score_prompt() for drawing in drawings if repeats and exchange.query.logprobs is not None)
    )
    prompts = scored or [[] for _ in drawings]
    replies = [
        drawing.reply(answer, prompt)
        for drawing, answers, prompt in zip(drawings, found, prompts, strict=True)
        for answer in answers
    ]
    prompt_tokens = sum(len(drawing.prompt) for drawing in drawings)
    drawings[0].service.count_tokens(prompt_tokens, sum(reply.tokens for reply in replies))
    return exchange.answer(replies, prompt_tokens)


async def _stream(exchange: Exchange[Query], drawings: list[Drawing]) -> AsyncIterator[bytes]:
    """The same as it grows."""
    owners = [drawing for drawing in drawings for _ in range(exchange.query.samples)]
    prompt_tokens = sum(len(drawing.prompt) for drawing in drawings)
    shown, logged, written = [""] * len(owners), [0] * len(owners), [0] * len(owners)
    for part in exchange.start(prompt_tokens):
        yield part
    async for at, answer in _interleave([drawing.stream(at) for at, drawing in enumerate(owners)]):
        drawing, text = owners[at], owners[at].shown(answer)
        # Later tokens may change how earlier ones read, and what was shown cannot be taken back.
        new = text[len(shown[at]) :] if text.startswith(shown[at]) else ""
        scores = drawing.scores(answer, logged[at]) if new or answer.reason else []
        shown[at], written[at] = shown[at] + new, len(answer.tokens)
        logged[at] += len(scores)
        parts = exchange.text(at, new, scores) if new or scores else []
        for part in [*parts, *(exchange.end(at, drawing.reply(answer)) if answer.reason else [])]:
            yield part
    drawings[0].service.count_tokens(prompt_tokens, sum(written))
    for part in exchange.finish(prompt_tokens, sum(written)):
        yield part


async def _admit_stream(service: Service, exchange: Exchange[Any], parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events of a stream; what goes wrong after the first is an event, too, because the status has gone out."""
    try:
        async with service.admit_sampling():
            async for part in parts:
                yield part
    except (Refusal, RequestRefused) as refused:
        yield exchange.fail(refused.status, str(refused))
    except Exception as error:
        get_logger(__name__).error("a stream failed", exc_info=error)
        yield exchange.fail(500, "the server failed; its log says how.")


async def _interleave[T](sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """What several streams give, as it comes."""
    waiting = {asyncio.ensure_future(anext(source)): at for at, source in enumerate(sources)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                at = waiting.pop(task)
                with contextlib.suppress(StopAsyncIteration):
                    yield at, task.result()
                    waiting[asyncio.ensure_future(anext(sources[at]))] = at
    finally:  # who asked may have gone, and nothing more is to be drawn for no one
        for task in waiting:
            task.cancel()


type Handler = Callable[[Any, Request, bytes], Awaitable[Response]]
TABLE: Final[list[tuple[str, str, Handler]]] = [
    *(("POST", path, partial(chat, kind)) for path, kind in CHAT_EXCHANGES.items()),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/inference/v1/generate", generate),
    ("POST", FEEDBACK, feedback),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", model),
]
PREFIXES: Final = ("/v1/", "/inference/")
"""Paths whose errors are in the shape of their API."""
