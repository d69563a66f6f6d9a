"""Our sampling client on top of the SDK's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import BackendError
from .. import checks
from ..client import Capabilities, Sample, SamplingParams, TopLogprobs
from ..datum import Floats
from ..future import Operation
from .pipeline import Pipeline

if TYPE_CHECKING:
    from .quirks import Quirks

_MASKED: Final = -99999.0
"""The protocol's log-probability for a missing token."""


@dataclass(frozen=True, slots=True)
class SamplerContext:
    """State shared by a client's samplers."""

    pipeline: Pipeline
    capabilities: Capabilities
    tokenizer: Any
    next_seed: Callable[[], int]
    version: Callable[[], int]
    """Counts the changes of the live weights."""
    quirks: Quirks

    def seed_for(self, params: SamplingParams) -> int:
        """The seed of a request, in the server's bit width."""
        seed = self.next_seed() if params.seed is None else params.seed
        return seed & ((1 << self.quirks.seed_bits) - 1)


class TinkerSamplingClient:
    """Frozen weights on a server to sample from."""

    def __init__(self, sampler: Any, ref: str, context: SamplerContext, version: int = 0) -> None:
        self._sampler, self._context, self._version = sampler, context, version
        self.ref = ref
        self.tokenizer = context.tokenizer

    def sample(self, prompt: Sequence[int], num_samples: int, params: SamplingParams) -> Operation[list[Sample]]:
        """Sample several continuations of a prompt."""
        checks.check_sampling(prompt, num_samples, params, self._context.capabilities)
        self._refuse_if_stale("sample")
        request = wire_params(replace(params, seed=self._context.seed_for(params)))
        tokens = wire_tokens(prompt)

        def convert_samples(response: Any) -> list[Sample]:
            samples = [_sample(sequence) for sequence in response.sequences]
            if len(samples) != num_samples:
                raise BackendError(f"{num_samples} samples were asked for and {len(samples)} came back.")
            return samples

        return self._submit("sample", lambda: self._sampler.sample(tokens, num_samples, request), convert_samples)

    def logprobs(self, tokens: Sequence[int]) -> Operation[Floats]:
        """The log-probability of each token given its predecessors, (N,); the first is nan."""
        length = self._check(tokens, "logprobs")
        return self._submit("logprobs", lambda: self._score(tokens, 0), lambda response: prompt_row(response, length))

    def topk_logprobs(self, tokens: Sequence[int], k: int, *changes: Any) -> Operation[TopLogprobs]:
        """The most probable tokens at each position; the first row has tokens -1, logprobs nan."""
        checks.check_top_k(k, self._context.capabilities, *changes)
        length = self._check(tokens, "topk_logprobs")
        return self._submit(
            "topk_logprobs", lambda: self._score(tokens, k), lambda response: prompt_table(response, length, k)
        )

    def _score(self, tokens: Sequence[int], k: int) -> Any:
        # The protocol scores a prompt only together with sampling.
        params = import_module("tinker").types.SamplingParams(max_tokens=1, seed=0)
        return self._sampler.sample(
            wire_tokens(tokens), 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=k
        )

    def _check(self, tokens: Sequence[int], what: str) -> int:
        checks.check_tokens(tokens, self._context.capabilities, where="tokens")
        self._refuse_if_stale(what)
        return len(tokens)

    def _submit[T](self, what: str, start: Callable[[], Any], convert: Callable[[Any], T]) -> Operation[T]:
        return self._context.pipeline.submit_now(what, start, convert)

    def _refuse_if_stale(self, what: str) -> None:
        """Refuse an old sampler on a server without snapshots: it has other weights, and may undo training."""
        if self._context.capabilities.snapshot_samplers or self._context.version() == self._version:
            return
        raise BackendError(
            f"{what} was asked of a sampler whose weights have been trained on since, and the samplers of the backend "
            f"'{self._context.capabilities.backend}' follow the live weights. Take a new sampler after each step, or "
            "use a server that keeps snapshots; `evsys doctor` says which do."
        )


def wire_tokens(tokens: Sequence[int]) -> Any:
    """Tokens in the SDK's form."""
    return import_module("tinker").types.ModelInput.from_ints([int(token) for token in tokens])


def wire_params(params: SamplingParams) -> Any:
    """Sampling options in the SDK's form."""
    return import_module("tinker").types.SamplingParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        stop=None if params.stop is None else list(params.stop),
    )


def _sample(sequence: Any) -> Sample:
    tokens, logprobs = list(sequence.tokens), sequence.logprobs
    if logprobs is None or len(logprobs) != len(tokens):
        raise BackendError(
            f"a sample has {len(tokens)} tokens and {len(logprobs or ())} log-probabilities; each needs one. "
            "This server does not keep the protocol."
        )
    return Sample(tokens, [float(value) for value in logprobs], sequence.stop_reason)


def prompt_row(response: Any, length: int) -> Floats:
    """Log-probabilities of a prompt, (N,); some servers omit the first position."""
    logprobs = response.prompt_logprobs_np
    if logprobs is None and response.prompt_logprobs is not None:
        logprobs = np.array([np.nan if value is None else value for value in response.prompt_logprobs])
    if length == 1:
        return np.full(1, np.nan, np.float32)
    row = _full_length(logprobs, length)
    row[0] = np.nan
    return row


def prompt_table(response: Any, length: int, k: int) -> TopLogprobs:
    """The most probable tokens at each position of a prompt."""
    tokens, logprobs = np.full((length, k), -1, np.int64), np.full((length, k), np.nan, np.float32)
    if length == 1:
        return TopLogprobs(tokens, logprobs, prompt_row(response, length))
    top = response.topk_prompt_logprobs_np
    if top is None or top.token_ids.shape[1] < k:
        raise BackendError(f"{k} alternatives per position were asked for and the server gave none, or fewer.")
    # From the end: some servers omit the first position, which has no value.
    values = top.logprobs[-(length - 1) :, :k].astype(np.float32)
    if len(values) != length - 1 or (values <= _MASKED).any():
        raise BackendError(f"the server gave alternatives for {len(values)} of {length - 1} positions.")
    tokens[1:], logprobs[1:] = top.token_ids[-(length - 1) :, :k], values
    return TopLogprobs(tokens, logprobs, prompt_row(response, length))


def _full_length(values: Any, length: int) -> Floats:
    if values is None or len(values) not in (length, length - 1):
        got = "no" if values is None else str(len(values))
        raise BackendError(f"{length} tokens were scored and {got} log-probabilities came back.")
    row = np.full(length, np.nan, np.float32)
    row[length - len(values) :] = values
    return row
