"""What the clients share that sample tokens themselves: a conversation in, a sampler asked, answers out.

A client of this kind sets `_sampler` and `_renderer` when it is made.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ...config.base import Strict
from ...config.prices import Prices, TokenUsage
from ...data.types import Message
from ...errors import ConfigError, Problem
from ..client import ChatClient, Completion, check_request, cut_at_stop
from ..renderer import decode

if TYPE_CHECKING:
    from ...backends.client import Sample, SamplingClient
    from ..renderer import Renderer


class SampledParams(Strict):
    """What the params of these clients share."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer in `run.eval`, which by default leaves room for the longest target; others say it themselves."""
    temperature: float | None = Field(default=None, ge=0)
    """Of the sampling in `run.eval`, by default 0; others say it themselves."""


def require_model(kind: str, model: str | None) -> str:
    """The model of a client that stands by itself; only `run.eval` has one to fall back on, the one just trained."""
    if model is None:
        message = f"inference client '{kind}' needs a model to ask"
        raise ConfigError(Problem(message, path="params.model", hint="Add 'model'."))
    return model


class SampledChatClient(ChatClient):
    """A chat client on top of a sampler."""

    model: str
    _sampler: SamplingClient
    _renderer: Renderer

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        stop: Sequence[str] | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        seed: int | None = None,
        n: int = 1,
    ) -> list[Completion]:
        from ...backends.client import SamplingParams

        check_request(max_tokens=max_tokens, temperature=temperature, stop=stop, n=n)
        started = time.monotonic()
        params = SamplingParams(max_tokens, temperature, seed=seed, stop=self._stops(stop))
        self.totals.count_request()
        try:
            prompt = self._renderer.prompt(messages)
            samples = await self._sampler.sample(prompt, n, params)
        except Exception:
            self.totals.count_failure()
            raise
        seconds = time.monotonic() - started
        return [self._completion(sample, len(prompt), stop, seconds) for sample in samples]

    def _stops(self, stop: Sequence[str] | None) -> Sequence[str] | Sequence[int]:
        """Where an answer ends: at the end of the turn, or at one of the given texts."""
        tokenizer = self._sampler.tokenizer
        ends = [end if isinstance(end, str) else decode(tokenizer, [end]) for end in self._renderer.stop]
        return [*ends, *(stop or ())]

    def _own_prices(self) -> Prices:
        """Prices that the client itself was given."""
        return {}

    def _completion(self, sample: Sample, prompt: int, stop: Sequence[str] | None, seconds: float) -> Completion:
        message = self._renderer.parse(sample.tokens)
        text, was_cut = cut_at_stop(str(message["content"]), stop)
        usage = TokenUsage(prompt, len(sample.tokens))
        cost = self._charge(self.model, usage, self._own_prices())
        reason = "stop" if was_cut else sample.stop_reason
        answer = {**message, "content": text}
        return Completion(text, answer, reason, usage, cost, seconds, sample.stop_reason, self.model)
