"""OpenAI's API on the models of this server: models, chat completions, completions, and drawing by token ids."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...errors import EvsysError, show
from ...log import get_logger
from ..answer import Refusal, answer_json
from .answers import DONE, Envelope, chat_logprobs, event, refuse, text_logprobs, usage
from .drawing import Answer, Drawing
from .models import OfferedModel
from .requests import (
    OPENING,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    OpenAIRefusal,
    read,
    read_object,
    safe_length,
    split_calls,
    tell_tools,
)

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


async def chat_completions(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/chat/completions`."""
    asked = read(ChatRequest, body)
    offered = await service.offered.open(asked.model, asked.asker)
    with_tools = bool(asked.tools) and asked.tool_choice != "none"
    prompt = _render(offered, asked, with_tools=with_tools)
    drawing = Drawing.of(
        service, offered, prompt, longest=asked.longest, client=_client(request),
        stops=asked.stops, top_logprobs=asked.top_logprobs or 0, **_read_sampling(asked),
    )  # fmt: skip
    chat = _Chat(asked, drawing, Envelope("chat.completion", offered.name), with_tools)

    def follow_up() -> None:
        if offered.shadow and service.can_shadow(offered.shadow):
            assert service.shadows is not None
            draw = partial(_draw_shadow, service, asked, offered.shadow)
            service.shadows.add(chat.envelope.full_id, offered.shadow, asked.messages, draw, size=len(body))

    if asked.stream:
        service.check_sampling_room()  # before the status has gone out
        return StreamingResponse(_admit_stream(service, chat.stream(), follow_up), media_type=_FORMAT)
    async with service.admit_sampling():
        answer = answer_json(await chat.complete())
    follow_up()
    return answer


async def _draw_shadow(service: Service, asked: ChatRequest, candidate: str) -> dict[str, Any]:
    """The answer of other weights, drawn while nobody waits; of several choices one."""
    offered = await service.offered.open(candidate)
    with_tools = bool(asked.tools) and asked.tool_choice != "none"
    prompt = _render(offered, asked, with_tools=with_tools)
    drawing = Drawing.of(
        service, offered, prompt, longest=asked.longest, client=None, stops=asked.stops, **_read_sampling(asked)
    )
    one = asked.model_copy(update={"n": 1, "logprobs": False, "top_logprobs": None})
    chat, answer = _Chat(one, drawing, Envelope("chat.completion", offered.name), with_tools), Answer()
    # As a stream, although nobody reads it: between its short pieces those who wait get their turns.
    async for grown in drawing.stream(0):
        answer = grown
    return chat.wrap([answer])


async def completions(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/completions`."""
    asked = read(CompletionRequest, body)
    offered = await service.offered.open(asked.model, asked.asker)
    drawings = [
        Drawing.of(
            service, offered, prompt, longest=asked.longest, client=_client(request), is_chat=False, stops=asked.stops,
            top_logprobs=asked.logprobs or 0, **_read_sampling(asked),
        )
        for prompt in _prompts(offered, asked)
    ]  # fmt: skip
    text = _Text(asked, drawings, Envelope("text_completion", offered.name))
    if asked.stream:
        service.check_sampling_room()
        return StreamingResponse(_admit_stream(service, text.stream()), media_type=_FORMAT)
    async with service.admit_sampling():
        return answer_json(await text.complete())


async def generate(service: Service, request: Request, body: bytes) -> Response:
    """`POST /inference/v1/generate`: ids in, ids and log-probabilities out."""
    asked = read(GenerateRequest, body)
    params, offered = asked.sampling_params, await service.offered.open(asked.model)
    if params.stop_token_ids and params.stop:
        raise OpenAIRefusal(400, "give stop or stop_token_ids, not both.", param="stop")
    stops = [params.stop] if isinstance(params.stop, str) else params.stop or []
    sampling = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k, "seed": params.seed}
    drawing = Drawing.of(
        service, offered, asked.token_ids, longest=params.max_tokens, client=_client(request), is_chat=False,
        stops=stops, top_logprobs=params.logprobs or 0, **sampling,
    )  # fmt: skip
    if params.stop_token_ids:
        drawing = drawing.stop_at(params.stop_token_ids)
    async with service.admit_sampling():
        answers = await drawing.draw(params.n)
    choices = [
        {
            "index": at,
            "token_ids": answer.tokens,
            "logprobs": {
                "content": [
                    {"token": f"token_id:{token}", "logprob": logprob}
                    for token, logprob in zip(answer.tokens, answer.logprobs, strict=True)
                ]
            },
            "finish_reason": answer.reason,
        }
        for at, answer in enumerate(answers)
    ]
    written = sum(len(answer.tokens) for answer in answers)
    return answer_json(
        {"request_id": asked.request_id, "choices": choices, "usage": usage(len(asked.token_ids), written)}
    )


async def feedback(service: Service, request: Request, body: bytes) -> Response:
    """`POST /v1/feedback`: what somebody thought of an answer, by its id."""
    if service.log is None:
        raise OpenAIRefusal(404, "this server keeps no traces that feedback could be about. Start it with --traces.")
    fields = read_object(body)
    try:
        async with service.feedback_turn:  # it may wait, and threads are few
            taken = await asyncio.to_thread(service.log.take_feedback, fields)
    except EvsysError as error:
        raise OpenAIRefusal(400, str(error)) from None
    if taken is None:
        told = f"no answer of this server has the id {show(fields.get('response_id'))}."
        raise OpenAIRefusal(404, told, param="response_id", code="response_not_found")
    return answer_json({"object": "feedback", **taken})


def _client(request: Request) -> str:
    """Who asks, for fair turns: the key where clients have their own, else the machine."""
    host = request.client.host if request.client else "?"
    return f"openai:{request.headers.get('authorization', '')[-64:]}:{host}"


def _read_sampling(asked: ChatRequest | CompletionRequest) -> dict[str, Any]:
    temperature = 1.0 if asked.temperature is None else asked.temperature
    top_k = -1 if asked.top_k is None else asked.top_k
    return {"temperature": temperature, "top_p": asked.top_p or 1.0, "top_k": top_k or -1, "seed": asked.seed}


def _render(offered: OfferedModel, asked: ChatRequest, *, with_tools: bool) -> list[int]:
    # "developer" is the newer word for "system", which templates know; a field that is null is one left out.
    messages = [
        {
            key: "system" if (key, value) == ("role", "developer") else value
            for key, value in message.items()
            if value is not None
        }
        for message in asked.messages
    ]
    if offered.system_prompt and messages[0].get("role") != "system":
        messages = [{"role": "system", "content": offered.system_prompt}, *messages]
    if with_tools:
        messages = tell_tools(messages, asked.tools or ())
    try:
        return offered.renderer.prompt(messages)
    except EvsysError as error:
        raise OpenAIRefusal(400, str(error), param="messages") from None


def _prompts(offered: OfferedModel, asked: CompletionRequest) -> list[list[int]]:
    given: Any = asked.prompt
    several: list[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
    found: list[list[int]] = [
        offered.client.tokenizer.encode(one, add_special_tokens=False) if isinstance(one, str) else one
        for one in several
    ]
    if not found or not all(found):
        raise OpenAIRefusal(400, "the prompt is empty.", param="prompt")
    return found


async def _admit_stream(
    service: Service, parts: AsyncIterator[bytes], follow_up: Callable[[], None] = lambda: None
) -> AsyncIterator[bytes]:
    """The events of a stream; what goes wrong after the first is an event, too, because the status has gone out."""
    try:
        async with service.admit_sampling():
            async for part in parts:
                yield part
        follow_up()
    except Refusal as refusal:
        yield b"data: " + bytes(refuse(refusal).body) + b"\n\n"
    except Exception as error:
        get_logger(__name__).error("a stream failed", exc_info=error)
        yield b"data: " + bytes(refuse(Refusal(500, "the server failed; its log says how.")).body) + b"\n\n"


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
    finally:  # who asked may have gone, and nothing more is to be drawn for nobody
        for task in waiting:
            task.cancel()


class _Chat:
    """One chat completion."""

    def __init__(self, asked: ChatRequest, drawing: Drawing, envelope: Envelope, with_tools: bool) -> None:
        self.asked, self.drawing, self.envelope, self.with_tools = asked, drawing, envelope, with_tools

    async def complete(self) -> dict[str, Any]:
        return self.wrap(await self.drawing.draw(self.asked.samples))

    def wrap(self, answers: list[Answer]) -> dict[str, Any]:
        """Whole answers as one completion."""
        choices = [self._choice(at, answer) for at, answer in enumerate(answers)]
        written = sum(len(answer.tokens) for answer in answers)
        return self.envelope.wrap(choices, usage=usage(len(self.drawing.prompt), written))

    def _choice(self, at: int, answer: Answer) -> dict[str, Any]:
        text, calls, reason = self._outcome(answer)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        logprobs = chat_logprobs(self.drawing, answer) if self.asked.logprobs else None
        return {"index": at, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _outcome(self, answer: Answer) -> tuple[str, list[dict[str, Any]], str]:
        text, reason = self.drawing.finish(answer)
        text, calls = split_calls(text) if self.with_tools else (text, [])
        return text, calls, "tool_calls" if calls else reason

    async def stream(self) -> AsyncIterator[bytes]:
        count = self.asked.samples
        for at in range(count):
            yield self._delta(at, {"role": "assistant", "content": "", "refusal": None})
        shown, logged, written = [""] * count, [0] * count, [0] * count
        async for at, answer in _interleave([self.drawing.stream(at) for at in range(count)]):
            written[at] = len(answer.tokens)
            for part in self._grow(at, answer, shown, logged):
                yield part
        if self.asked.wants_usage:
            yield event(self.envelope.chunk([], usage=usage(len(self.drawing.prompt), sum(written))))
        yield DONE

    def _grow(self, at: int, answer: Answer, shown: list[str], logged: list[int]) -> list[bytes]:
        """The events for what an answer has more than was shown of it."""
        calls: list[dict[str, Any]] = []
        reason = None
        if answer.reason:
            text, calls, reason = self._outcome(answer)
        else:
            text = self.drawing.text(answer)
            # What may begin a stop or a call is kept back until it is clear that it does not.
            holdbacks = [*self.drawing.stops, *([OPENING] if self.with_tools else [])]
            text = text[: safe_length(text, holdbacks)]
        parts: list[bytes] = []
        # Later tokens may change how earlier ones read, and what was shown cannot be taken back.
        new = text[len(shown[at]) :] if text.startswith(shown[at]) else ""
        logprobs = None
        if self.asked.logprobs and (new or reason):
            logprobs = chat_logprobs(self.drawing, answer, logged[at])
            logged[at] = self.drawing.count_text_tokens(answer)
        if new or logprobs:
            shown[at] += new
            parts.append(self._delta(at, {"content": new}, logprobs=logprobs))
        for number, call in enumerate(calls):
            function = call["function"]
            head = {"index": number, "id": call["id"], "type": "function"}
            parts.append(
                self._delta(at, {"tool_calls": [{**head, "function": {"name": function["name"], "arguments": ""}}]})
            )
            rest = {"index": number, "function": {"arguments": function["arguments"]}}
            parts.append(self._delta(at, {"tool_calls": [rest]}))
        if reason:
            parts.append(self._delta(at, {}, reason))
        return parts

    def _delta(
        self, at: int, delta: dict[str, Any], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        more: dict[str, Any] = {"usage": None} if self.asked.wants_usage else {}
        return event(self.envelope.chunk([choice], **more))


class _Text:
    """One completion of the older API, of one prompt or several."""

    def __init__(self, asked: CompletionRequest, drawings: list[Drawing], envelope: Envelope) -> None:
        self.asked, self.drawings, self.envelope = asked, drawings, envelope

    async def complete(self) -> dict[str, Any]:
        found = await asyncio.gather(*(drawing.draw(self.asked.samples) for drawing in self.drawings))
        pairs = [(drawing, answer) for drawing, answers in zip(self.drawings, found, strict=True) for answer in answers]
        choices: list[dict[str, Any]] = []
        for at, (drawing, answer) in enumerate(pairs):
            text, reason = drawing.finish(answer)
            logprobs = None if self.asked.logprobs is None else text_logprobs(drawing, answer)
            choices.append({"index": at, "text": text, "logprobs": logprobs, "finish_reason": reason})
        read_tokens = sum(len(drawing.prompt) for drawing in self.drawings)
        return self.envelope.wrap(choices, usage=usage(read_tokens, sum(len(answer.tokens) for _, answer in pairs)))

    async def stream(self) -> AsyncIterator[bytes]:
        owners = [drawing for drawing in self.drawings for _ in range(self.asked.samples)]
        shown, written = [""] * len(owners), [0] * len(owners)
        async for at, answer in _interleave([drawing.stream(at) for at, drawing in enumerate(owners)]):
            drawing = owners[at]
            text, reason = drawing.finish(answer) if answer.reason else (drawing.text(answer), None)
            if not reason:
                text = text[: safe_length(text, drawing.stops)]
            new = text[len(shown[at]) :] if text.startswith(shown[at]) else ""
            shown[at] += new
            written[at] = len(answer.tokens)
            if new or reason:
                choice = {"index": at, "text": new, "logprobs": None, "finish_reason": reason}
                yield event(self.envelope.chunk([choice]))
        if self.asked.wants_usage:
            read_tokens = sum(len(drawing.prompt) for drawing in self.drawings)
            yield event(self.envelope.chunk([], usage=usage(read_tokens, sum(written))))
        yield DONE


type Handler = Callable[[Any, Request, bytes], Awaitable[Response]]
TABLE: Final[list[tuple[str, str, Handler]]] = [
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/inference/v1/generate", generate),
    ("POST", FEEDBACK, feedback),
    ("GET", "/v1/models", models),
    ("GET", "/v1/models/{name:path}", model),
]
PREFIXES: Final = ("/v1/", "/inference/")
"""Paths whose errors are in OpenAI's shape."""
