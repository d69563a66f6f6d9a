"""Our sampling client on top of Fireworks' completions.

Differences from the Tinker protocol: every sample is a separate request, and each gets its own seed, while the client
would use one for all. Of the two kinds of log-probabilities, of the sampling policy and of the model, we use the
model's. Stops are texts, four at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import BackendError, show
from .. import checks
from ..client import Sample, SamplingParams, TopLogprobs
from ..datum import Floats
from ..future import Operation
from ..seeds import stream_of
from ..tinker.sampling import SamplerContext, TinkerSamplingClient
from .session import FireworksSession

SCHEME: Final = "fireworks://"
_MOST_STOPS: Final = 4
_NOT_A_TEXT: Final = "\N{REPLACEMENT CHARACTER}"
"""Tokenizers' output for a partial character."""


class FireworksRequestError(Exception):
    """An error response to a completion request."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(text or f"HTTP {status_code}")
        self.status_code = status_code


@dataclass(frozen=True, slots=True)
class _Completion:
    tokens: list[int]
    logprobs: list[float]
    """Of the prompt after its first token, where that was asked for, and of the tokens."""
    finish_reason: str


class FireworksSamplingClient(TinkerSamplingClient):
    """Frozen weights at Fireworks to sample from."""

    def __init__(
        self, session: FireworksSession, sampler: Any, ref: str, context: SamplerContext, version: int = 0
    ) -> None:
        super().__init__(session.keep(sampler.deployment_sampler), ref, context, version)
        self._session = session

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Sample several continuations of a prompt."""
        checks.check_sampling(prompt, num_samples, params, self._context.capabilities)
        self._refuse_if_stale("sample")
        stop = self._stop_texts(params.stop)
        endless = stop is not None and not any(map(self._is_control, stop))
        seed, mask = self._context.seed_for(params), (1 << self._context.quirks.seed_bits) - 1
        tokens = [int(token) for token in prompt]

        async def ask() -> list[_Completion]:
            # A separate seed for each sample.
            seeds = [stream_of(seed, number) & mask for number in range(num_samples)]
            requests = [_request(params, sample_seed, stop, endless) for sample_seed in seeds]
            return await asyncio.gather(*(self._complete(tokens, request) for request in requests))

        def convert(completions: list[_Completion]) -> list[Sample]:
            return [
                Sample(
                    completion.tokens, completion.logprobs, "length" if completion.finish_reason == "length" else "stop"
                )
                for completion in completions
            ]

        return self._submit("sample", lambda: self._session.run(ask()), convert)

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """The log-probability of each token given its predecessors, (N,); the first is nan."""
        length, prompt = self._check(tokens, "logprobs"), [int(token) for token in tokens]

        def convert(completion: _Completion) -> Floats:
            row = np.full(length, np.nan, np.float32)
            row[1:] = completion.logprobs[: length - 1]
            return row

        request: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "echo": True}
        ask: Coroutine[Any, Any, _Completion] = self._complete(prompt, request)
        return self._submit("logprobs", lambda: self._session.run(ask), convert)

    def topk_logprobs(self, tokens: Sequence[int], k: int, *changes: Any) -> Operation[TopLogprobs]:
        """Not supported: Fireworks' client reports no alternatives for a prompt."""
        checks.check_top_k(k, self._context.capabilities)
        raise BackendError(
            "topk_logprobs was asked of Fireworks, whose client reports no alternatives for a prompt. Leave "
            "backend.params.top_k_logprobs at 0, or use backend.kind 'tinker'."
        )

    def _stop_texts(self, stop: Sequence[str] | Sequence[int] | None) -> list[str] | None:
        """Stops in the service's form; None for the model's end of text."""
        if stop is None:
            return None
        texts = [mark if isinstance(mark, str) else str(self.tokenizer.decode([mark])) for mark in stop]
        if len(texts) > _MOST_STOPS:
            raise BackendError(f"{len(texts)} stops were given, and Fireworks takes {_MOST_STOPS} at most. Use fewer.")
        if not all(texts) or any(_NOT_A_TEXT in text for text in texts):
            raise BackendError(f"a stop in {list(stop)} has no text, and Fireworks takes texts only. Use another.")
        return texts

    def _is_control(self, text: str) -> bool:
        """Whether a stop is a control token, whose text may not appear in a sample."""
        special = {int(token) for token in getattr(self.tokenizer, "all_special_ids", ())}
        return any(int(token) in special for token in self.tokenizer.encode(text, add_special_tokens=False))

    async def _complete(self, prompt: list[int], request: dict[str, Any]) -> _Completion:
        """One completion with the model's log-probabilities."""
        try:
            [completion] = await self._sampler.sample_with_prompt_tokens(prompt, n=1, logprobs=True, **request)
        except Exception as error:
            response: Any = getattr(error, "response", None)
            status = getattr(response, "status_code", None)
            if isinstance(status, int):  # the client's errors contain whole requests; keep the status and one line
                raise FireworksRequestError(status, _detail(response)) from None
            raise
        tokens = [int(token) for token in completion.full_tokens[completion.prompt_len :]]
        echoed = len(prompt) - 1 if request.get("echo") else 0
        logprobs: Any = completion.inference_logprobs
        if logprobs is None or len(logprobs) != echoed + len(tokens):
            raise BackendError(
                f"Fireworks gave {len(logprobs or ())} log-probabilities of the model for {echoed + len(tokens)} "
                "tokens; each needs one."
            )
        return _Completion(tokens, [float(value) for value in logprobs], str(completion.finish_reason))


def _detail(response: Any) -> str:
    """The service's error message."""
    try:
        return str(response.json()["error"]["message"])
    except Exception:  # another format, or an unread stream
        return ""


def _request(params: SamplingParams, seed: int, stop: list[str] | None, ignore_eos: bool) -> dict[str, Any]:
    request: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "seed": seed,
    }
    if stop:
        request["stop"] = stop
    if ignore_eos:
        request["ignore_eos"] = True
    return request


def check_path(ref: str) -> str:
    """The service's name of a checkpoint from our reference."""
    if not ref.startswith(SCHEME) or not ref.removeprefix(SCHEME).strip("/"):
        raise BackendError(
            f"{show(ref)} is not a checkpoint at Fireworks: those begin with {SCHEME}. Take one from the "
            "checkpoints.jsonl of a run on this backend."
        )
    return ref.removeprefix(SCHEME)
