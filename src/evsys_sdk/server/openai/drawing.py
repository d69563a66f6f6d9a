"""Samples answers, complete or streamed: in turn with other clients, cut at stop sequences."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...backends import checks
from ...backends.client import Sample, SamplingParams, TokenFilter
from ...backends.seeds import seed_of_later
from ...data.types import ToolDefinition
from ...errors import EvsysError
from ...inference.grammar import answer_grammar
from ...inference.messages import FunctionCall, calls_of
from ...inference.protocols.exchange import ChatQuery, Query, Reply, RequestRefused, TextQuery, TokenScore, chat_reply
from ...inference.renderer import decode
from ...inference.token_stream import TokenStream
from ...inference.tool_parsers import show_growing
from .models import OfferedModel

if TYPE_CHECKING:
    from ..service import Service


type _Scored = tuple[int, float | None, list[tuple[int, float]]]
"""A token, its log-probability, and the most probable tokens at its position."""


@dataclass(slots=True)
class DrawnAnswer:
    """One continuation, possibly incomplete."""

    tokens: list[int] = field(default_factory=list[int])
    scored: list[_Scored] = field(default_factory=list[_Scored])
    reason: str = ""
    """`stop` or `length`; empty while incomplete."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A request for continuations of one prompt."""

    service: Service
    model: OfferedModel
    prompt: list[int]
    params: SamplingParams
    client: str
    """The client for fair sharing; empty for requests without sampling."""
    query: Query

    @classmethod
    def of_chat(cls, service: Service, model: OfferedModel, query: ChatQuery, client: str) -> AnswerRequest:
        """A request to continue a conversation."""
        try:
            prompt = model.renderer.prompt(query.messages, query.tools)
        except EvsysError as error:
            raise RequestRefused(str(error), param="messages") from None
        drawing = cls.of(service, model, query, prompt, client)
        if not query.forced and query.output_schema is None:
            return drawing
        try:
            return replace(drawing, params=replace(drawing.params, make_filter=_grammar(model, query, prompt)))
        except EvsysError as error:
            raise RequestRefused(str(error), param="tool_choice" if query.forced else "response_format") from None

    @classmethod
    def of(
        cls, service: Service, model: OfferedModel, query: Query, prompt: Sequence[int], client: str
    ) -> AnswerRequest:
        """Create a request; validates everything before sampling."""
        room = model.context_length - len(prompt)
        is_scored_only = query.max_tokens == 0
        if room < (0 if is_scored_only else 1):
            raise RequestRefused(
                f"the prompt has {len(prompt)} tokens, and this model reads {model.context_length} with its answer.",
                param="messages" if isinstance(query, ChatQuery) else "prompt",
                code="context_length_exceeded",
            )
        if (query.logprobs or 0) > model.top_logprobs:
            raise RequestRefused(f"top_logprobs may be {model.top_logprobs} at most here.", param="top_logprobs")
        params = SamplingParams(
            max_tokens=max(1, min(query.max_tokens or service.settings.max_tokens, room)),
            temperature=query.temperature,
            top_k=query.top_k,
            top_p=query.top_p,
            seed=query.seed,
            stop=_ends(model, query),
            top_logprobs=query.logprobs or 0,
        )
        able = service.engine.capabilities(model.base_model)
        try:
            checks.check_sampling(prompt[:-1] or prompt if is_scored_only else prompt, 1, params, able)
        except EvsysError as error:
            raise RequestRefused(str(error)) from None
        return cls(service, model, list(prompt), params, client, query)

    async def draw(self, count: int) -> list[DrawnAnswer]:
        """Several complete continuations."""
        if self.query.max_tokens == 0:
            return [DrawnAnswer(reason="length") for _ in range(count)]
        turns = self.service.samples
        samples = await turns.draw(self.client, self.model.client, self.prompt, self.params, count)
        return [_extend(DrawnAnswer(), sample) for sample in samples]

    async def stream(self, index: int) -> AsyncIterator[DrawnAnswer]:
        """Continuation number `index` as it grows."""
        tokens, seed = TokenStream(), self.params.seed
        seed = None if seed is None else seed_of_later(seed, index)
        params = replace(self.params, seed=seed, on_token=tokens.on_token)
        drawn = self.service.samples.run_one(self.client, lambda: self.model.client.sample(self.prompt, 1, params))
        sampling, answer = asyncio.ensure_future(drawn), DrawnAnswer()
        async for new in tokens.read(sampling):
            answer.tokens += [token for token, _, _ in new]
            answer.scored += new
            yield answer
        [sample] = await sampling
        yield _extend(DrawnAnswer(), sample)

    async def score_prompt(self) -> list[_Scored]:
        """The prompt's tokens with their log-probabilities; the first has none."""
        k = self.query.logprobs or 0
        submit = self.model.client.topk_logprobs
        top = await self.service.samples.run_one(self.client, lambda: submit(self.prompt, max(k, 1)))
        if top.given is None:
            raise RequestRefused("this backend does not score prompts. Leave out echo or logprobs.", param="echo")
        rows = zip(self.prompt[1:], top.given[1:], top.tokens[1:], top.logprobs[1:], strict=True)
        first: list[_Scored] = [(self.prompt[0], None, [])]
        return first + [
            (token, float(logprob), [(int(t), float(v)) for t, v in zip(ids[:k], values[:k], strict=True)])
            for token, logprob, ids, values in rows
        ]

    def shown(self, answer: DrawnAnswer) -> str:
        """The final part of an answer so far, excluding the possible start of a stop or call."""
        return show_growing(self._text(answer), self.model.renderer.tool_parser, self._tools, self.query.stops)

    def reply(self, answer: DrawnAnswer, prompt: Sequence[_Scored] = ()) -> Reply:
        """The reply of a complete answer; `prompt` is echoed before it."""
        text, stop = _cut(self._text(answer), self.query.stops)
        calls: list[FunctionCall] = []
        if self._tools and stop is None:
            message = self.model.renderer.parse(answer.tokens, self._tools)
            # Mistral's templates accept only ids of nine letters and digits.
            calls = [replace(call, id=secrets.token_hex(5)[:9]) for call in calls_of(message)]
            text = str(message["content"])
            if isinstance(self.query, ChatQuery) and not self.query.parallel:
                calls = calls[:1]
        if isinstance(self.query, TextQuery) and self.query.echo:
            text = decode(self.model.client.tokenizer, self.prompt) + text
        reason = "tool_calls" if calls else "stop" if stop is not None or answer.reason == "stop" else "length"
        scores = [*self._describe(prompt), *self.scores(answer)]
        reply = chat_reply if self._is_chat else Reply
        return reply(text, reason, len(answer.tokens), calls, stop, scores)

    def scores(self, answer: DrawnAnswer, start: int = 0) -> list[TokenScore]:
        """Log-probabilities of an answer's tokens from `start` on, if requested."""
        return self._describe(answer.scored[start : self.count_text_tokens(answer)])

    def count_text_tokens(self, answer: DrawnAnswer) -> int:
        """Number of tokens of an answer without its end mark."""
        ends = [end for end in self.model.renderer.stop if isinstance(end, int)] if self._is_chat else []
        return next((at for at, token in enumerate(answer.tokens) if token in ends), len(answer.tokens))

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.query, ChatQuery)

    @property
    def _tools(self) -> Sequence[ToolDefinition]:
        return self.query.tools if isinstance(self.query, ChatQuery) else ()

    def _text(self, answer: DrawnAnswer) -> str:
        """The text of an answer so far, without its end mark."""
        if self._is_chat:
            return str(self.model.renderer.parse(answer.tokens)["content"])
        return decode(self.model.client.tokenizer, answer.tokens, skip_special_tokens=True)

    def _describe(self, scored: Sequence[_Scored]) -> list[TokenScore]:
        if self.query.logprobs is None:
            return []
        tokenizer = self.model.client.tokenizer
        return [
            TokenScore(
                decode(tokenizer, [token]),
                logprob,
                [(decode(tokenizer, [candidate]), value) for candidate, value in top],
            )
            for token, logprob, top in scored
        ]


def _extend(answer: DrawnAnswer, sample: Sample) -> DrawnAnswer:
    top = sample.top
    best: list[list[tuple[int, float]]] = [[] for _ in sample.tokens]
    if top is not None:
        rows = zip(top.tokens.tolist(), top.logprobs.tolist(), strict=True)
        best = [list(zip(ids, values, strict=True)) for ids, values in rows]
    answer.tokens += sample.tokens
    answer.scored += zip(sample.tokens, sample.logprobs, best, strict=True)
    answer.reason = sample.stop_reason
    return answer


def _grammar(model: OfferedModel, query: ChatQuery, prompt: Sequence[int]) -> Callable[[], TokenFilter]:
    """The grammar of an answer: a call if forced, else JSON, or a call if there are tools."""
    tokenizer, renderer = model.client.tokenizer, model.renderer
    return answer_grammar(
        tokenizer,
        schema=None if query.forced else query.output_schema,
        tools=query.tools,
        parser=renderer.tool_parser,
        ends=renderer.stop,
        after_thinking=decode(tokenizer, prompt[-8:]).rstrip().endswith("<think>"),
    )


def _cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first stop, and that stop."""
    positions = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return (text[: min(positions)[0]], min(positions)[1]) if positions else (text, None)


def _ends(model: OfferedModel, query: Query) -> Sequence[str] | Sequence[int] | None:
    """Stops for the backend: the end of a turn, and any requested texts."""
    is_chat = isinstance(query, ChatQuery)
    ends = model.renderer.stop if is_chat else []
    if not query.stops:
        return ends if is_chat else None
    # A backend accepts texts or tokens, not both: with texts, the end marks are texts too.
    tokenizer = model.client.tokenizer
    if not is_chat:
        eos = getattr(tokenizer, "eos_token_id", None)
        ends = [] if eos is None else [eos]
    return [*(end if isinstance(end, str) else decode(tokenizer, [end]) for end in ends), *query.stops]
