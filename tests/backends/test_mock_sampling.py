from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from evsys_sdk.backends.client import Sample, SamplingParams
from evsys_sdk.backends.mock.client import MockTrainingClient
from evsys_sdk.backends.mock.sampling import Drawing, SampleRequest, advance, choose
from evsys_sdk.backends.mock.weights import Weights, base_weights

type MakeClient = Callable[..., MockTrainingClient]


def generate(weights: Weights, requests: list[SampleRequest], tokens: int = 1000) -> list[list[Sample]]:
    """All samples, so many tokens in a row."""
    many = [Drawing(request) for request in requests]
    while not all(sampling.done for sampling in many):
        advance(weights, many, tokens)
    return [sampling.samples() for sampling in many]


def test_a_sample_does_not_depend_on_what_it_is_batched_with() -> None:
    weights = base_weights("batching", 0, hidden=64)
    prompts = ["one: two, three. four", "<|im_start|>user\nPick: red, green<|im_end|>\n<|im_start|>assistant\n", "x"]
    requests = [
        SampleRequest(np.frombuffer(text.encode(), np.uint8).astype(np.int64), count, SamplingParams(20), seed)
        for seed, (text, count) in enumerate(zip(prompts, (3, 5, 1), strict=True))
    ]
    together = generate(weights, requests)
    assert together == [generate(weights, [request])[0] for request in requests]
    assert together == generate(weights, requests, tokens=3), "nor on when it had to wait"


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    uniform = (np.arange(2000) + 0.5) / 2000
    logprobs = np.tile(np.log(probabilities), (2000, 1))

    def shares(params: SamplingParams) -> list[float]:
        counts = Counter(choose(logprobs, [params] * 2000, uniform).tolist())
        return [counts[token] / 2000 for token in range(4)]

    assert shares(SamplingParams(1)) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=2e-3)
    assert shares(SamplingParams(1, top_k=2)) == pytest.approx([0.625, 0.375, 0, 0], abs=2e-3)
    assert shares(SamplingParams(1, top_p=0.79)) == pytest.approx([0.625, 0.375, 0, 0], abs=2e-3)
    assert shares(SamplingParams(1, top_p=0.4)) == [1, 0, 0, 0]
    assert shares(SamplingParams(1, temperature=0)) == [1, 0, 0, 0]
    squared = probabilities**2 / (probabilities**2).sum()
    assert shares(SamplingParams(1, temperature=0.5)) == pytest.approx(squared.tolist(), abs=2e-3)


def test_requests_without_a_seed_differ_from_each_other_and_repeat_with_the_run(make_client: MakeClient) -> None:
    runs: list[list[list[int]]] = []
    for seed in (1, 1, 2):
        sampler = make_client(seed=seed).sampler().result()
        runs.append([sampler.sample([65, 66], 1, SamplingParams(12)).result()[0].tokens for _ in range(3)])
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert len({tuple(tokens) for tokens in runs[0]}) == 3


def test_a_resumed_run_samples_on_where_it_stopped(make_client: MakeClient) -> None:
    def draw(client: MockTrainingClient) -> list[int]:
        return client.sampler().result().sample([65], 1, SamplingParams(12)).result()[0].tokens

    client = make_client(seed=4)
    draw(client)
    ref = client.save_state("here").result()
    following = [draw(client), draw(client)]
    resumed = make_client(seed=4, load_checkpoint_path=ref)
    assert [draw(resumed), draw(resumed)] == following


def test_the_end_of_turn_stops_unless_told_otherwise(client: MockTrainingClient) -> None:
    sampler = client.sampler().result()
    prompt = client.tokenizer.encode("<|im_start|>user\nSay this: yes<|im_end|>\n<|im_start|>assistant\n")
    stopped = sampler.sample(prompt, 1, SamplingParams(20, temperature=0)).result()[0]
    assert client.tokenizer.decode(stopped.tokens) == "yes<|im_end|>"
    assert stopped.stop_reason == "stop"
    free = sampler.sample(prompt, 1, SamplingParams(20, temperature=0, stop=[])).result()[0]
    assert (len(free.tokens), free.stop_reason) == (20, "length")
    assert free.tokens[:4] == stopped.tokens


def test_scoring_one_token_has_nothing_to_say(client: MockTrainingClient) -> None:
    sampler = client.sampler().result()
    assert np.isnan(sampler.logprobs([65]).result()).tolist() == [True]
    top = sampler.topk_logprobs([65], 2).result()
    assert (top.tokens.tolist(), np.isnan(top.logprobs).all()) == ([[-1, -1]], True)
