"""Conformance tests of a training client. Subclass them for your backend and create the client:

    class TestMyBackend(BackendConformance):
        def make_client(self):
            return MyBackend().prepare(model=ModelSpec("my-model"), run_dir=Path(tempfile.mkdtemp()))["training_client"]

The tests use the protocol only, so they also work for a remote server. All clients of `make_client` must start from the
same weights. Tolerances are class attributes, see `ClientProbes`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ..backends.client import AdamParams, SamplingClient, SamplingParams, TrainingClient
from ..backends.datum import Datum, Floats
from ..backends.losses import numpy_loss
from ..backends.probes.training import logprobs_of, scale_weights
from ..errors import EvsysError
from .client_probes import (
    ClientProbes,
    make_datum,
    make_name,
    mistaken,
    only_target,
    soften,
)
from .filter_conformance import FilterConformance
from .reference_losses import REFERENCES, numerical_gradients, reference_loss


class TrainingConformance(ClientProbes):
    """Losses, gradients, steps and invalid input."""

    def test_the_loss_is_the_sum_over_tokens_and_data(self, client: TrainingClient) -> None:
        data = self.data(client)
        output = client.forward(data).result()
        expected = -sum(float((d.weights * lp).sum()) for d, lp in zip(data, output.logprobs, strict=True))
        assert [lp.shape for lp in output.logprobs] == [datum.target_tokens.shape for datum in data]
        assert output.loss == pytest.approx(expected, rel=1e-4)
        assert client.forward([*data, *data]).result().loss == pytest.approx(2 * expected, rel=1e-4)
        assert client.forward(scale_weights(data, 2)).result().loss == pytest.approx(2 * expected, rel=1e-4)

    def test_doubling_the_weights_doubles_the_gradient(self) -> None:
        once = self.effect(lambda c: c.forward_backward(self.data(c), "cross_entropy"))
        twice = self.effect(lambda c: c.forward_backward(scale_weights(self.data(c), 2), "cross_entropy"))
        self.assert_proportional(once, twice, 2)

    def test_negative_weights_reverse_the_gradient(self) -> None:
        once = self.effect(lambda c: c.forward_backward(self.data(c), "cross_entropy"))
        reversed_ = self.effect(lambda c: c.forward_backward(scale_weights(self.data(c), -1), "cross_entropy"))
        self.assert_proportional(once, -reversed_, 1)

    def test_a_datum_given_twice_counts_twice(self) -> None:
        once = self.effect(lambda c: c.forward_backward(self.data(c), "cross_entropy"))
        twice = self.effect(lambda c: c.forward_backward([*self.data(c), *self.data(c)], "cross_entropy"))
        self.assert_proportional(once, twice, 2)

    def test_gradients_accumulate_until_the_step(self) -> None:
        def one_by_one(client: TrainingClient) -> None:
            for datum in self.data(client):
                client.forward_backward([datum], "cross_entropy")

        together = self.effect(lambda c: c.forward_backward(self.data(c), "cross_entropy"))
        self.assert_proportional(together, self.effect(one_by_one), 1)

    def test_the_gradient_norm_is_of_the_sum_and_before_clipping(self) -> None:
        norms: list[float] = []
        for factor in (1, 2):
            with self.fresh() as client:
                client.forward_backward(scale_weights(self.data(client), factor), "cross_entropy")
                # Clipped far below any gradient here, to detect a norm that is computed after clipping.
                metrics = client.optim_step(AdamParams(0.0, grad_clip_norm=1e-3)).result().metrics
                if "grad_norm" not in metrics:
                    pytest.skip("this backend reports no grad_norm")
                norms.append(metrics["grad_norm"])
        assert norms[1] == pytest.approx(2 * norms[0], rel=1e-2)
        assert norms[0] > 1e-3

    @pytest.mark.parametrize("loss_fn", sorted(REFERENCES))
    def test_a_named_loss_has_the_value_and_gradient_of_its_formula(self, loss_fn: str) -> None:
        with self.fresh() as client:
            if loss_fn not in client.capabilities.losses:
                pytest.skip(f"this backend does not declare {loss_fn}")
            data = self.data(client, loss_fn)
            output = client.forward_backward(data, loss_fn).result()
            self.linear_step(client)
            named = logprobs_of(client, data)
        assert output.loss == pytest.approx(reference_loss(loss_fn, data, output.logprobs), rel=1e-3, abs=1e-4)
        gradients = numerical_gradients(loss_fn, data, output.logprobs)
        # The gradient of the formula must move the weights like the named loss.
        with self.fresh() as client:
            before = logprobs_of(client, data)
            self._submit_gradients(client, data, gradients)
            self.linear_step(client)
            self.assert_proportional(logprobs_of(client, data) - before, named - before, 1)

    def test_soft_targets_are_the_sum_of_their_hard_ones(self) -> None:
        def soft(client: TrainingClient) -> None:
            data = [soften(datum) for datum in self.data(client)]
            client.forward_backward(data, "cross_entropy")

        def hard(client: TrainingClient) -> None:
            for column in (0, 1):
                data = [only_target(soften(datum), column) for datum in self.data(client)]
                client.forward_backward(data, "cross_entropy")

        with self.fresh() as client:
            if not client.capabilities.soft_targets:
                pytest.skip("this backend declares no soft targets")
        self.assert_proportional(self.effect(hard), self.effect(soft), 1)

    def test_a_step_can_be_submitted_before_the_backward_pass_is_awaited(self, client: TrainingClient) -> None:
        data = self.data(client)
        before = client.forward(data).result().loss
        adam = AdamParams(self.learning_rate)
        pending = [(client.forward_backward(data, "cross_entropy"), client.optim_step(adam)) for _ in range(4)]
        losses = [backward.result().loss for backward, _ in pending]
        pending[-1][1].result()
        assert losses[0] == pytest.approx(before, rel=1e-4)
        assert losses[-1] < before
        assert client.forward(data).result().loss < before

    def test_operations_can_be_awaited(self, client: TrainingClient) -> None:
        async def train() -> float:
            backward = client.forward_backward(self.data(client), "cross_entropy")
            step = client.optim_step(AdamParams(self.learning_rate))
            await step
            return (await backward).loss

        assert asyncio.run(train()) > 0

    def test_a_learning_rate_of_zero_changes_nothing(self, client: TrainingClient) -> None:
        data = self.data(client)
        before = logprobs_of(client, data)
        client.forward_backward(data, "cross_entropy")
        client.optim_step(AdamParams(0.0)).result()
        assert np.array_equal(logprobs_of(client, data), before)

    def test_a_forward_pass_leaves_no_gradient(self) -> None:
        with self.fresh() as client:
            data = self.data(client)
            before = logprobs_of(client, data)  # this is a forward pass
            client.optim_step(AdamParams(self.learning_rate)).result()
            assert np.array_equal(logprobs_of(client, data), before)

    @pytest.mark.parametrize("mistake", ["empty", "lengths", "token", "target", "nan", "inf", "advantages", "loss"])
    def test_bad_input_is_refused_and_changes_nothing(self, client: TrainingClient, mistake: str) -> None:
        good = self.data(client)
        before = logprobs_of(client, good)
        data, loss_fn = mistaken(mistake, good, client.capabilities.vocab_size)
        with pytest.raises(EvsysError) as refused:
            client.forward_backward(data, loss_fn).result()
        assert len(str(refused.value)) > 20
        # A step shows whether the refused input left a gradient.
        client.optim_step(AdamParams(self.learning_rate)).result()
        assert np.array_equal(logprobs_of(client, good), before)

    def test_a_custom_loss_that_fails_says_so_and_the_client_lives_on(self, client: TrainingClient) -> None:
        if not client.capabilities.custom_loss:
            pytest.skip("this backend declares no custom losses")

        @numpy_loss
        def broken(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
            raise ZeroDivisionError("on purpose")

        with pytest.raises(ZeroDivisionError, match="on purpose"):
            client.forward_backward_custom(self.data(client), broken).result()
        assert client.forward(self.data(client)).result().loss > 0

    def test_closing_twice_is_harmless_and_later_calls_are_refused(self, client: TrainingClient) -> None:
        data = self.data(client)
        client.close()
        client.close()
        with pytest.raises(EvsysError, match="closed"):
            client.forward(data).result()

    def _submit_gradients(self, client: TrainingClient, data: Sequence[Datum], gradients: Sequence[Floats]) -> None:
        if client.capabilities.custom_loss:

            @numpy_loss
            def given(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
                return 0.0, {}, list(gradients)

            client.forward_backward_custom(data, given).result()
        else:  # cross entropy with weight w has the gradient -w, so weights can encode any gradient
            weighted = [dataclasses.replace(d, weights=-g) for d, g in zip(data, gradients, strict=True)]
            client.forward_backward(weighted, "cross_entropy").result()


class StateConformance(ClientProbes):
    """Saving, loading and snapshots."""

    def test_a_restored_state_continues_as_if_nothing_had_happened(self, client: TrainingClient) -> None:
        self.learn(client)
        ref = client.save_state(make_name()).result()
        self.learn(client)
        straight = logprobs_of(client, self.data(client))
        client.load_state(ref, with_optimizer=True).result()
        self.learn(client)
        self._assert_resumed(straight, logprobs_of(client, self.data(client)))
        with self.fresh() as other:
            other.load_state(ref, with_optimizer=True).result()
            self.learn(other)
            self._assert_resumed(straight, logprobs_of(other, self.data(other)))

    def test_without_its_optimizer_a_state_has_the_same_weights_and_a_fresh_start(self, client: TrainingClient) -> None:
        self.learn(client)
        saved = logprobs_of(client, self.data(client))
        ref = client.save_state(make_name()).result()
        self.learn(client, steps=1)
        straight = logprobs_of(client, self.data(client))
        client.load_state(ref, with_optimizer=False).result()
        self._assert_resumed(saved, logprobs_of(client, self.data(client)))
        self.learn(client, steps=1)
        assert not np.array_equal(logprobs_of(client, self.data(client)), straight)

    def test_loading_drops_the_accumulated_gradient(self, client: TrainingClient) -> None:
        data = self.data(client)
        ref = client.save_state(make_name()).result()
        before = logprobs_of(client, data)
        client.forward_backward(data, "cross_entropy").result()
        client.load_state(ref).result()
        client.optim_step(AdamParams(self.learning_rate)).result()
        assert np.array_equal(logprobs_of(client, data), before)

    def test_a_state_that_does_not_exist_is_refused(self, client: TrainingClient) -> None:
        with pytest.raises(EvsysError):
            client.load_state("there/is/no/such/state").result()
        assert client.forward(self.data(client)).result().loss > 0

    def test_a_sampler_keeps_its_weights_and_does_not_touch_the_live_ones(self, client: TrainingClient) -> None:
        tokens = self.data(client)[0].tokens.tolist()
        old = client.sampler().result()
        before = old.logprobs(tokens).result()
        self.learn(client)
        live = logprobs_of(client, self.data(client))
        assert np.array_equal(old.logprobs(tokens).result(), before, equal_nan=True)
        old.sample(tokens, 2, SamplingParams(max_tokens=4, seed=1)).result()
        assert np.array_equal(logprobs_of(client, self.data(client)), live)
        assert not np.array_equal(client.sampler().result().logprobs(tokens).result(), before, equal_nan=True)

    def test_a_named_sampler_can_be_opened_again(self, client: TrainingClient) -> None:
        tokens = self.data(client)[0].tokens.tolist()
        self.learn(client)
        sampler = client.sampler(make_name()).result()
        expected = sampler.logprobs(tokens).result()
        self.learn(client)
        reopened = client.open_sampler(sampler.ref).result()
        np.testing.assert_allclose(reopened.logprobs(tokens).result(), expected, atol=self.logprob_tolerance)

    def _assert_resumed(self, expected: Floats, got: Floats) -> None:
        if self.exact_resume:
            assert np.array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, atol=self.logprob_tolerance)


class SamplingConformance(ClientProbes):
    """Sampling and scoring."""

    @pytest.fixture
    def sampler(self, client: TrainingClient) -> SamplingClient:
        """A sampler of the untrained weights."""
        return client.sampler().result()

    def prompt(self, sampler: SamplingClient) -> list[int]:
        """The tokens of a prompt."""
        return sampler.tokenizer.encode("Once upon a time there was a")

    def test_reported_logprobs_are_those_of_scoring_and_of_training(self, client: TrainingClient) -> None:
        self.learn(client)
        sampler = client.sampler().result()
        prompt = self.prompt(sampler)
        for sample in sampler.sample(prompt, 3, SamplingParams(max_tokens=12, seed=3, temperature=0.7)).result():
            scored = sampler.logprobs([*prompt, *sample.tokens]).result()
            assert scored.shape == (len(prompt) + len(sample.tokens),)
            assert np.isnan(scored[0])
            np.testing.assert_allclose(sample.logprobs, scored[len(prompt) :], atol=self.logprob_tolerance)
            datum = make_datum(prompt, sample.tokens)
            trained = client.forward([datum]).result().logprobs[0][-len(sample.tokens) :]
            np.testing.assert_allclose(sample.logprobs, trained, atol=self.logprob_tolerance)

    def test_seeds_decide_samples(self, sampler: SamplingClient, client: TrainingClient) -> None:
        if not client.capabilities.seeds:
            pytest.skip("this backend declares no sampling seeds")
        first, again, other = (
            [s.tokens for s in sampler.sample(self.prompt(sampler), 4, SamplingParams(16, seed=seed)).result()]
            for seed in (7, 7, 8)
        )
        assert first == again
        assert first != other
        assert len({tuple(tokens) for tokens in first}) > 1, "the samples of one request must differ from each other"

    def test_the_best_tokens_are_reported_in_order(self, sampler: SamplingClient, client: TrainingClient) -> None:
        k = min(4, client.capabilities.top_k_logprobs)
        if not k:
            pytest.skip("this backend reports no alternatives")
        prompt = self.prompt(sampler)
        top, scored = sampler.topk_logprobs(prompt, k).result(), sampler.logprobs(prompt).result()
        assert top.tokens.shape == top.logprobs.shape == (len(prompt), k)
        assert top.given is not None
        np.testing.assert_allclose(top.given[1:], scored[1:], atol=self.logprob_tolerance)
        assert (np.diff(top.logprobs[1:], axis=1) <= 0).all()
        assert (np.exp(top.logprobs[1:]).sum(axis=1) <= 1 + 1e-3).all()
        for position, token in enumerate(prompt[1:], start=1):
            listed = np.flatnonzero(top.tokens[position] == token)
            assert scored[position] <= top.logprobs[position, 0] + self.logprob_tolerance
            if len(listed):
                expected = pytest.approx(scored[position], abs=self.logprob_tolerance)
                assert top.logprobs[position, listed[0]] == expected

    def test_temperature_zero_takes_the_best_token(self, sampler: SamplingClient, client: TrainingClient) -> None:
        prompt = self.prompt(sampler)
        greedy = SamplingParams(max_tokens=6, temperature=0.0)
        first, second = (sampler.sample(prompt, 1, greedy).result()[0] for _ in range(2))
        assert first.tokens == second.tokens
        if client.capabilities.top_k_logprobs:
            best = sampler.topk_logprobs([*prompt, *first.tokens], 1).result().logprobs[len(prompt) :, 0]
            np.testing.assert_allclose(first.logprobs, best, atol=self.logprob_tolerance)

    def test_top_k_of_one_is_greedy_at_any_temperature(self, sampler: SamplingClient) -> None:
        prompt = self.prompt(sampler)
        narrow = sampler.sample(prompt, 1, SamplingParams(6, temperature=1.5, top_k=1, seed=5)).result()[0]
        greedy = sampler.sample(prompt, 1, SamplingParams(6, temperature=0.0)).result()[0]
        np.testing.assert_allclose(narrow.logprobs, greedy.logprobs, atol=self.logprob_tolerance)

    def test_max_tokens_ends_a_sample(self, sampler: SamplingClient) -> None:
        sample = sampler.sample(self.prompt(sampler), 1, SamplingParams(max_tokens=5, seed=1, stop=[])).result()[0]
        assert (len(sample.tokens), len(sample.logprobs), sample.stop_reason) == (5, 5, "length")

    def test_a_sample_ends_with_its_stop_token_or_text(self, sampler: SamplingClient) -> None:
        prompt = self.prompt(sampler)
        free = sampler.sample(prompt, 1, SamplingParams(max_tokens=12, seed=2, stop=[])).result()[0].tokens
        token = free[4]
        until = free[: free.index(token) + 1]
        stopped = sampler.sample(prompt, 1, SamplingParams(max_tokens=12, seed=2, stop=[token])).result()[0]
        assert (stopped.tokens, stopped.stop_reason) == (until, "stop")
        text = sampler.tokenizer.decode([token])
        by_text = sampler.sample(prompt, 1, SamplingParams(max_tokens=12, seed=2, stop=[text])).result()[0]
        assert by_text.stop_reason == "stop"
        # It may end earlier, because the text may also span two tokens.
        assert by_text.tokens == free[: len(by_text.tokens)]
        assert text in sampler.tokenizer.decode(by_text.tokens)

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(max_tokens=0),
            SamplingParams(max_tokens=4, temperature=-1.0),
            SamplingParams(max_tokens=4, temperature=float("nan")),
            SamplingParams(max_tokens=4, top_k=0),
            SamplingParams(max_tokens=4, top_p=0.0),
            SamplingParams(max_tokens=10**9),
        ],
        ids=lambda params: repr(params)[15:-1],
    )
    def test_impossible_parameters_are_refused(self, sampler: SamplingClient, params: SamplingParams) -> None:
        with pytest.raises(EvsysError) as refused:
            sampler.sample(self.prompt(sampler), 1, params).result()
        assert len(str(refused.value)) > 20

    def test_prompts_outside_the_vocabulary_are_refused(self, sampler: SamplingClient, client: TrainingClient) -> None:
        for prompt in ([], [client.capabilities.vocab_size], [-1]):
            with pytest.raises(EvsysError):
                sampler.sample(prompt, 1, SamplingParams(max_tokens=2)).result()


class BackendConformance(TrainingConformance, StateConformance, SamplingConformance, FilterConformance):
    """All conformance tests of a backend."""
