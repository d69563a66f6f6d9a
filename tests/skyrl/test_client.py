"""Our client over SkyRL's server with the stock tinker package: exact resume, samples, scores, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams, SamplingParams, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import BackendError, EvsysError

from .conftest import Connect
from .running import SkyRLServer

pytestmark = pytest.mark.skyrl


def data(client: TrainingClient) -> list[Datum]:
    pairs = [("the cat likes", " music."), ("one two three", " four five.")]
    return [supervised(client.tokenizer.encode(prompt), client.tokenizer.encode(answer)) for prompt, answer in pairs]


def supervised(prompt: list[int], answer: list[int]) -> Datum:
    return Datum.supervised([*prompt, *answer], [0.0] * len(prompt) + [1.0] * len(answer))


def learn(client: TrainingClient, steps: int) -> list[float]:
    """Both halves of each step are submitted before either is waited for."""
    losses: list[float] = []
    for _ in range(steps):
        backward = client.forward_backward(data(client), "cross_entropy")
        client.optim_step(AdamParams(1e-2)).result()
        losses.append(backward.result().loss)
    return losses


def scores(client: TrainingClient) -> list[list[float]]:
    return [lp.tolist() for lp in client.forward(data(client)).result().logprobs]


def test_a_state_continues_bit_by_bit_with_its_optimizer_and_only_then(connect: Connect) -> None:
    client = connect()
    learn(client, 3)
    ref = client.save_state("third").result()
    straight = learn(client, 3), scores(client)
    resumed = connect(load_checkpoint_path=ref)
    assert (learn(resumed, 3), scores(resumed)) == straight
    afresh = connect(init_from_checkpoint=ref)
    assert learn(afresh, 1)[0] == straight[0][0], "the weights are those that were saved"
    assert learn(afresh, 2) != straight[0][1:], "without its optimizer it goes another way"


def test_going_back_in_the_same_client_is_exact(connect: Connect) -> None:
    client = connect()
    learn(client, 2)
    ref = client.save_state("second").result()
    straight = learn(client, 2)
    client.load_state(ref).result()
    assert learn(client, 2) == straight


def test_samples_carry_the_logprobs_of_training_and_repeat_with_their_seed(connect: Connect) -> None:
    client = connect()
    learn(client, 2)
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("who sees the weather?")
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=3)
    samples = sampler.sample(prompt, 4, params).result()
    assert sampler.sample(prompt, 4, params).result() == samples
    assert len({tuple(sample.tokens) for sample in samples}) > 1, "samples of one request differ"
    whole = [*prompt, *samples[0].tokens]
    [trained] = client.forward([Datum.supervised(whole, [1.0] * len(whole))]).result().logprobs
    np.testing.assert_allclose(samples[0].logprobs, trained[len(prompt) - 1 :], atol=1e-3)
    scored = sampler.logprobs(whole).result()
    assert scored.shape == (len(whole),)
    assert np.isnan(scored[0])
    np.testing.assert_allclose(scored[1:], trained, atol=1e-3)


def test_an_old_sampler_is_refused_because_it_would_undo_training(connect: Connect) -> None:
    client = connect()
    sampler = client.sampler().result()
    learn(client, 1)
    with pytest.raises(BackendError, match=r"follow the live weights.*Take a new sampler after each step"):
        sampler.sample([5, 6], 1, SamplingParams(max_tokens=1))
    with pytest.raises(BackendError, match="follow the live weights"):
        sampler.logprobs([5, 6])


def test_what_the_server_would_take_without_a_word_is_refused_here(connect: Connect) -> None:
    client = connect()
    tokens = [5, 6, 7]
    with pytest.raises(EvsysError, match="512, which is not in the vocabulary"):
        client.forward_backward([Datum.supervised([*tokens, 512], [1.0] * 4)], "cross_entropy")
    with pytest.raises(EvsysError, match=r"negative|positive"):
        client.forward_backward([Datum.supervised(tokens, [-1.0] * 3)], "cross_entropy")


def test_a_model_that_the_server_does_not_have_is_refused_here(server: SkyRLServer, tmp_path: Path) -> None:
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.tinker.backend import SkyRLBackend

    with pytest.raises(BackendError, match="has no model 'Qwen/Qwen3-8B'"):
        SkyRLBackend(base_url=server.url).prepare(model=ModelSpec("Qwen/Qwen3-8B"), run_dir=tmp_path)
