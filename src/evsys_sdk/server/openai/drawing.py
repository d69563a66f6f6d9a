"""Drawing an answer, whole or as it comes: in turn with all other clients, cut where it is to stop.

A stream is drawn in short pieces, each going on from the one before. At temperature 0 it is the same text as the whole;
at others a seed gives the same stream each time, and the same whole each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...backends import checks
from ...backends.client import Sample, SamplingParams, TopLogprobs
from ...backends.seeds import seed_of_later
from ...errors import EvsysError
from ...inference.client import cut_at_stop
from ...inference.renderer import decode
from .models import OfferedModel
from .requests import OpenAIRefusal

if TYPE_CHECKING:
    from ..service import Service

_PIECES: Final = (4, 8, 16, 32)
"""Tokens of the pieces of a stream; all later ones are as long as the last."""
# Short at first, so that the first words come soon; longer later, because each piece is a request to the backend.


@dataclass(slots=True)
class Answer:
    """One continuation, perhaps not at its end yet."""

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    top: list[TopLogprobs] = field(default_factory=list[TopLogprobs])
    reason: str = ""
    """`stop` or `length`; empty while it goes on."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is asked of a model about one prompt."""

    service: Service
    model: OfferedModel
    prompt: list[int]
    params: SamplingParams
    client: str | None
    """Whose turn it takes; nobody's where it is drawn only while nobody waits."""
    stops: tuple[str, ...] = ()
    """What the client wants the text to end before."""
    top_logprobs: int = 0
    is_chat: bool = True

    @classmethod
    def of(
        cls, service: Service, model: OfferedModel, prompt: Sequence[int], *, longest: int | None, client: str | None,
        is_chat: bool = True, stops: Sequence[str] = (), top_logprobs: int = 0, **sampling: Any,
    ) -> Drawing:  # fmt: skip
        """Check everything that can be wrong, so that it is refused before anything is drawn."""
        room = model.context_length - len(prompt)
        if room < 1:
            raise OpenAIRefusal(
                400,
                f"the prompt has {len(prompt)} tokens, and this model reads {model.context_length} with its answer.",
                param="messages" if is_chat else "prompt",
                code="context_length_exceeded",
            )
        if top_logprobs > model.top_logprobs:
            raise OpenAIRefusal(400, f"top_logprobs may be {model.top_logprobs} at most here.", param="top_logprobs")
        wanted = min(longest or service.settings.max_tokens, room)
        params = SamplingParams(max_tokens=wanted, stop=_ends(model, stops, is_chat=is_chat), **sampling)
        try:
            checks.check_sampling(prompt, 1, params, service.engine.capabilities(model.base_model))
        except EvsysError as error:
            raise OpenAIRefusal(400, str(error)) from None
        return cls(service, model, list(prompt), params, client, tuple(stops), top_logprobs, is_chat)

    def stop_at(self, tokens: Sequence[int]) -> Drawing:
        """The same, ended by tokens."""
        return replace(self, params=replace(self.params, stop=list(tokens)))

    async def draw(self, count: int) -> list[Answer]:
        """Several continuations, whole."""

        async def start(first: int, some: int) -> list[Answer]:
            params = self.params
            if params.seed is not None:
                params = replace(params, seed=seed_of_later(params.seed, first))
            samples = await self.model.client.sample(self.prompt, some, params)
            return [await self._extend(Answer(), sample) for sample in samples]

        return await self._take_turn(count, start)

    async def stream(self, index: int) -> AsyncIterator[Answer]:
        """One continuation as it grows."""
        answer, at = Answer(), 0
        while not answer.reason:
            left = self.params.max_tokens - len(answer.tokens)
            piece = min(left, _PIECES[min(at, len(_PIECES) - 1)])
            params = replace(self.params, max_tokens=piece, seed=_seed_of_piece(self.params.seed, index, at))
            context = [*self.prompt, *answer.tokens]

            async def start(
                first: int, some: int, context: list[int] = context, params: SamplingParams = params
            ) -> list[Sample]:
                return await self.model.client.sample(context, 1, params)

            [sample] = await self._take_turn(1, start)
            await self._extend(answer, sample)
            # The piece is full, the answer is not; one that drew nothing would be asked for the same again for ever.
            if sample.stop_reason == "length" and sample.tokens and piece < left:
                answer.reason = ""
            if self.stops and cut_at_stop(self.text(answer), self.stops)[1]:
                answer.reason = "stop"  # also where it lies across two pieces
            at += 1
            yield answer

    def text(self, answer: Answer) -> str:
        """What an answer says so far, without the mark that ends it."""
        if self.is_chat:
            return str(self.model.renderer.parse(answer.tokens)["content"])
        return decode(self.model.client.tokenizer, answer.tokens, skip_special_tokens=True)

    def finish(self, answer: Answer) -> tuple[str, str]:
        """The text of an answer at its end, and why it ended."""
        text, was_cut = cut_at_stop(self.text(answer), self.stops or None)
        return text, "stop" if was_cut else answer.reason

    def said(self, answer: Answer) -> int:
        """How many tokens of an answer are text, and not the mark that ends it."""
        ends = [end for end in self.model.renderer.stop if isinstance(end, int)] if self.is_chat else []
        return next((at for at, token in enumerate(answer.tokens) if token in ends), len(answer.tokens))

    async def _take_turn[T](self, count: int, start: Callable[[int, int], Awaitable[list[T]]]) -> list[T]:
        turns = self.service.samples
        if self.client is None:
            return await turns.run_spare(lambda: start(0, count))
        return await turns.run(self.client, count, start)

    async def _extend(self, answer: Answer, sample: Sample) -> Answer:
        before = len(answer.tokens)
        answer.tokens += sample.tokens
        answer.logprobs += sample.logprobs
        answer.reason = sample.stop_reason
        if self.top_logprobs:
            top = await self.model.client.topk_logprobs([*self.prompt, *answer.tokens], self.top_logprobs)
            start = len(self.prompt) + before
            answer.top.append(TopLogprobs(top.tokens[start:], top.logprobs[start:]))
        return answer


def _ends(model: OfferedModel, stops: Sequence[str], *, is_chat: bool) -> Sequence[str] | Sequence[int] | None:
    """Where the backend stops: at the end of a turn, or at one of the given texts."""
    ends = model.renderer.stop if is_chat else []
    if not stops:
        return ends if is_chat else None
    # A backend stops at texts or at tokens, not at both: beside texts, the marks that end a turn are texts, too.
    tokenizer = model.client.tokenizer
    if not is_chat:
        eos = getattr(tokenizer, "eos_token_id", None)
        ends = [] if eos is None else [eos]
    return [*(end if isinstance(end, str) else decode(tokenizer, [end]) for end in ends), *stops]


def _seed_of_piece(seed: int | None, index: int, piece: int) -> int | None:
    if seed is None:
        return None
    # 56 bits, because a seed must fit a signed number of 64
    digest = hashlib.blake2b(f"{seed} {index} {piece}".encode(), digest_size=7).digest()
    return int.from_bytes(digest)
