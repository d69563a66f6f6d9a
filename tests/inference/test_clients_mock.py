"""The mock client answers with the mock backend's model: the same seed, the same answer, and at no cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams, ModelSpec
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.backends.mock.client import MockTrainingClient
from evsys_sdk.errors import BackendError, DataError
from evsys_sdk.inference.clients.sampled import MockClient
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.protocols import InferenceClient

ASK: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0}
HELLO = [{"role": "user", "content": "hello"}]
LESSON = [{"role": "user", "content": "Which city?"}, {"role": "assistant", "content": "Paris"}]


@pytest.fixture
def client() -> Iterator[MockClient]:
    with MockClient(model="tiny", seed=3) as client:
        yield client


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[MockTrainingClient]:
    """A model that has learned one answer by heart."""
    backend = MockBackend()
    handles = backend.prepare(model=ModelSpec("tiny"), run_dir=tmp_path)
    training: MockTrainingClient = handles["training_client"]
    [rendered] = get_renderer(training.tokenizer).render(LESSON)
    datum = Datum.supervised(rendered.tokens, list(np.array(rendered.weights) / sum(rendered.weights)))
    for _ in range(60):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(AdamParams(learning_rate=1e-2)).result()
    yield training
    backend.teardown(handles)


async def test_the_same_seed_gives_the_same_answers(client: MockClient) -> None:
    first = await client.complete(HELLO, **ASK, seed=7, n=3)
    again = await client.complete(HELLO, **ASK, seed=7, n=3)
    other = await client.complete(HELLO, **ASK, seed=8, n=3)
    texts = [[completion.text for completion in completions] for completions in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == 3


def test_without_a_seed_a_whole_series_of_calls_repeats() -> None:
    def series() -> list[str]:
        with MockClient(model="tiny", seed=3) as client:
            assert isinstance(client, InferenceClient)
            return [client.generate(prompt="hello", **ASK) for _ in range(3)]

    assert series() == series()
    assert len(set(series())) == 3


async def test_an_answer_says_what_it_took(client: MockClient) -> None:
    [completion] = await client.complete(HELLO, max_tokens=4, temperature=0.0)
    assert completion.usage.input_tokens == len(get_renderer(client._sampler.tokenizer).prompt(HELLO))
    assert completion.usage.output_tokens == 4
    assert completion.stop_reason == "length"
    assert completion.cost_usd == 0.0
    assert completion.model == "tiny"
    assert client.totals.cost_usd == 0.0
    assert client.totals.completions == 1


@pytest.mark.parametrize("kind", ["sampler", "state"])
async def test_it_answers_what_the_checkpoint_has_learned(trained: MockTrainingClient, kind: str) -> None:
    ref = trained.sampler("done").result().ref if kind == "sampler" else trained.save_state("done").result()
    with MockClient(checkpoint=ref) as client:
        [completion] = await client.complete(LESSON[:1], max_tokens=24, temperature=0.0)
        assert completion.text == "Paris"
        assert completion.stop_reason == "stop"
        assert completion.model == "tiny"
        assert client.generate(prompt="Which city?", max_tokens=24, temperature=0.0, stop=["ri"]) == "Pa"


def test_a_checkpoint_of_another_model_is_refused(trained: MockTrainingClient) -> None:
    ref = trained.sampler("done").result().ref
    with pytest.raises(BackendError, match="was saved with model='tiny'"):
        MockClient(checkpoint=ref, model="large")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="there is no complete checkpoint"):
        MockClient(checkpoint=str(tmp_path / "nothing"))


async def test_images_are_refused_and_counted_as_a_failure(client: MockClient) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    with pytest.raises(DataError, match="is an image"):
        await client.complete([{"role": "user", "content": [image]}], **ASK)
    assert client.totals.failures == 1


async def test_a_conversation_that_does_not_fit_reports_it(client: MockClient) -> None:
    with pytest.raises((BackendError, DataError), match="context of 4096"):
        await client.complete([{"role": "user", "content": "x" * 5000}], **ASK)
