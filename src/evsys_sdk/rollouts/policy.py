"""Policies: the model as an agent sees it, from a sampler with its tokens or from any inference client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..backends.client import SamplingClient, SamplingParams
from ..errors import DataError
from .rollout import Message, Policy, Turn

if TYPE_CHECKING:
    from ..inference.renderer import Renderer


@dataclass(frozen=True, slots=True)
class SamplerPolicy:
    """A frozen sampler: its turns hold the exact tokens that were sampled, so that they can be trained on."""

    sampler: SamplingClient
    renderer: Renderer
    params: SamplingParams
    context_length: int
    seed: int = 0
    """Together with the conversation it decides every sample."""

    async def act(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None) -> Turn:
        prompt = self.renderer.prompt(messages)
        room = self.context_length - len(prompt)
        if room <= 0:
            raise ContextFullError(
                f"the conversation has {len(prompt)} tokens and the model reads at most {self.context_length}. "
                "Lower the number of turns, or what tools return."
            )
        params = replace(
            self.params,
            max_tokens=min(self.params.max_tokens, room),
            seed=_seed(self.seed, prompt),
            stop=self.params.stop if self.params.stop is not None else self.renderer.stop,
        )
        [sample] = await self.sampler.sample(prompt, 1, params)
        return Turn(
            message=self.renderer.parse(sample.tokens),
            prompt_tokens=prompt,
            completion_tokens=sample.tokens,
            logprobs=sample.logprobs,
            stop_reason=sample.stop_reason,
            input_tokens=len(prompt),
            output_tokens=len(sample.tokens),
        )

    def seeded(self, *parts: object) -> SamplerPolicy:
        """The same policy with a seed of its own, e.g. for one sample of one task at one step."""
        digest = hashlib.blake2b(repr((self.seed, *parts)).encode(), digest_size=7).digest()
        return replace(self, seed=int.from_bytes(digest))


class ContextFullError(DataError):
    """The conversation has outgrown the model; the rollout is truncated, not failed."""


class RecordingPolicy:
    """Passes everything on and keeps the turns, so that an agent that breaks off leaves what it did."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.turns: list[Turn] = []

    async def act(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None) -> Turn:
        turn = await self._policy.act(messages, tools=tools)
        self.turns.append(turn)
        return turn


def _seed(seed: int, prompt: Sequence[int]) -> int:
    """A seed for this prompt: turns of one rollout must not share their random numbers."""
    digest = hashlib.blake2b(repr((seed, len(prompt))).encode(), digest_size=7).digest()
    return int.from_bytes(digest)
