"""Conformance tests of `make_filter`, `top_logprobs` and `on_token`."""

from __future__ import annotations

import numpy as np
import pytest

from ..backends.client import SampledToken, SamplingClient, SamplingParams, TrainingClient
from .client_probes import ClientProbes


class FilterConformance(ClientProbes):
    """Tests of backends that filter tokens and report alternatives while they sample; others are skipped."""

    def test_a_token_and_its_alternatives_come_from_one_pass(
        self, sampler: SamplingClient, client: TrainingClient
    ) -> None:
        if not client.capabilities.filters:
            pytest.skip("this backend reports no alternatives while it samples")
        k = min(4, client.capabilities.top_k_logprobs)
        prompt = list(sampler.tokenizer.encode("Once upon a time"))
        sample = sampler.sample(prompt, 1, SamplingParams(8, temperature=0.0, stop=[], top_logprobs=k)).result()[0]
        assert sample.top is not None
        assert sample.top.tokens.shape == (8, k)
        np.testing.assert_array_equal(sample.top.logprobs[:, 0], np.array(sample.logprobs, np.float32))

    def test_a_filter_decides_which_tokens_are_sampled(self, sampler: SamplingClient, client: TrainingClient) -> None:
        if not client.capabilities.filters:
            pytest.skip("this backend does not limit tokens")
        prompt = list(sampler.tokenizer.encode("Once upon a time"))
        allowed = [prompt[0], prompt[-1], prompt[0]]
        for temperature in (0.0, 1.0):
            params = SamplingParams(9, temperature, seed=2, stop=[], make_filter=lambda: _Only(list(allowed)))
            for sample in sampler.sample(prompt, 2, params).result():
                assert (sample.tokens, sample.stop_reason) == (allowed, "stop")

    def test_tokens_are_reported_as_they_are_sampled(self, sampler: SamplingClient, client: TrainingClient) -> None:
        if not client.capabilities.filters:
            pytest.skip("this backend samples on another machine")
        prompt = list(sampler.tokenizer.encode("Once upon a time"))
        tokens_heard: list[SampledToken] = []

        def on_token(token: SampledToken) -> bool:
            tokens_heard.append(token)
            return len(tokens_heard) != 12

        params = SamplingParams(8, seed=2, stop=[], top_logprobs=1, on_token=on_token)
        [sample] = sampler.sample(prompt, 1, params).result()
        assert [(token, logprob) for token, logprob, _ in tokens_heard] == list(
            zip(sample.tokens, sample.logprobs, strict=True)
        )
        assert all(len(best) == 1 for _, _, best in tokens_heard)
        [sample] = sampler.sample(prompt, 1, params).result()
        assert len(sample.tokens) == 4, "a listener that returns False ends the sample"


class _Only:
    """A filter that allows one sequence of tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self._left = tokens

    def allowed(self) -> list[int]:
        return self._left[:1]

    def accept(self, token: int) -> None:
        self._left = self._left[1:]
