"""Policies: the model behind an agent, from a sampler with tokens or any inference client."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..backends.client import Sample, SamplingClient, SamplingParams
from ..config.prices import TokenUsage
from ..errors import BackendError, show
from ..inference.token_buffer import TokenBuffer, is_raw, parse_raw
from ..inference.token_stream import TokenStream
from ..inference.tool_parsers import show_growing
from .rollout import Message, Policy, TruncatedError, Turn

if TYPE_CHECKING:
    from ..inference.renderer import Renderer


type OnText = Callable[[str], None]
"""Receives the growing text of an answer, without a possible start of a tool call."""


@dataclass(slots=True)
class SamplerPolicy:
    """A frozen sampler in one rollout.

    Its turns have the exact sampled tokens, for training. A prompt that continues an earlier answer starts with that
    answer's tokens, and only new messages are tokenized.
    """

    sampler: SamplingClient
    renderer: Renderer
    params: SamplingParams
    context_length: int
    seed: int = 0
    """With the conversation, it determines every sample."""
    _buffer: TokenBuffer | None = None

    @property
    def buffer(self) -> TokenBuffer:
        """The token buffer of this rollout."""
        if self._buffer is None:
            self._buffer = TokenBuffer(self.renderer)
        return self._buffer

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        on_text: OnText | None = None,
    ) -> Turn:
        offered = list(tools or ())
        buffered = self.buffer.prompt(messages, offered)
        prompt = buffered.tokens
        room = self.context_length - len(prompt)
        if room <= 0:
            raise ContextFullError(
                f"the conversation has {len(prompt)} tokens, but the context length is {self.context_length}. "
                "Reduce the number of turns or the output of tools."
            )
        params = replace(
            self.params,
            max_tokens=min(self.params.max_tokens, room),
            seed=_derive_seed(self.seed, *prompt),  # a different random stream for every turn
            stop=self.params.stop if self.params.stop is not None else self.renderer.stop,
        )

        def read(tokens: Sequence[int], tools: Sequence[dict[str, Any]] = ()) -> Message:
            return parse_raw(self.renderer, tokens) if is_raw(messages) else self.renderer.parse(tokens, tools)

        sample = _only_sample(await self._sample(prompt, params, offered, read, on_text))
        price = getattr(self.sampler, "cost_of", None)  # only metered samplers have it
        message = read(sample.tokens, offered)
        self.buffer.add(messages, offered, message, buffered, sample.tokens)
        return Turn(
            message=message,
            prompt_tokens=prompt,
            completion_tokens=sample.tokens,
            logprobs=sample.logprobs,
            stop_reason=sample.stop_reason,
            input_tokens=len(prompt),
            output_tokens=len(sample.tokens),
            cost_usd=price(TokenUsage(len(prompt), len(sample.tokens))) if price else None,
            as_template=buffered.as_template,
        )

    async def _sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        tools: Sequence[dict[str, Any]],
        read: Callable[[Sequence[int]], Message],
        on_text: OnText | None,
    ) -> list[Sample]:
        if on_text is None:
            return await self.sampler.sample(prompt, 1, params)
        stream, tokens = TokenStream(), list[int]()
        operation = self.sampler.sample(prompt, 1, replace(params, on_token=stream.on_token))
        sampling = asyncio.ensure_future(operation)
        async for new in stream.read(sampling):
            tokens += [token for token, _, _ in new]
            on_text(show_growing(str(read(tokens)["content"]), self.renderer.tool_parser, tools))
        return await sampling

    def with_seed(self, *parts: object) -> SamplerPolicy:
        """A copy for one rollout, with a derived seed and a new token buffer."""
        return replace(self, seed=_derive_seed(self.seed, *parts), _buffer=None)


class ContextFullError(TruncatedError):
    """The conversation exceeds the context length; the rollout is truncated, not failed."""


class RecordingPolicy:
    """Records turns and errors of a policy, so that an aborted agent's work is kept."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.turns: list[Turn] = []
        self.messages: list[Message] = []
        """The conversation up to the last answer."""
        self.failure: Exception | None = None
        """The error of the last call, which an agent may have caught."""

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        on_text: OnText | None = None,
    ) -> Turn:
        conversation = [dict(message) for message in messages]
        try:
            # Other policies do not stream.
            more: dict[str, Any] = {"on_text": on_text} if isinstance(self._policy, SamplerPolicy) else {}
            turn = await self._policy.act(messages, tools=tools, **more)
            if not isinstance(turn, Turn):  # pyright: ignore[reportUnnecessaryIsInstance]  # may be a user's policy
                raise BackendError(f"the policy answered with {show(turn)} instead of a Turn.")
        except Exception as error:
            self.failure = error
            raise
        self.failure = None
        self.turns.append(turn)
        self.messages = [*conversation, turn.message]
        return turn


def _only_sample(samples: Sequence[Sample]) -> Sample:
    """The single requested sample, validated for training."""
    if len(samples) != 1:
        raise BackendError(f"the sampler returned {len(samples)} samples instead of one.")
    [sample] = samples
    if not sample.tokens or len(sample.tokens) != len(sample.logprobs):
        raise BackendError(
            f"the sampler returned {len(sample.tokens)} tokens with {len(sample.logprobs)} log-probabilities; "
            "every sampled token needs one."
        )
    if not all(map(math.isfinite, sample.logprobs)):
        raise BackendError(f"the sampler returned a log-probability that is not finite: {show(sample.logprobs)}.")
    return sample


def _derive_seed(*parts: object) -> int:
    # Seven bytes fit a signed 64-bit integer. `hash` differs between processes.
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest())
