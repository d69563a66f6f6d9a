"""Recurrent layers in packed rows and in the sampler: long texts, shared beginnings, late samples, recomputation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytest.importorskip("transformers", reason="needs the extra local; run make test-local")
pytestmark = pytest.mark.local

from evsys_sdk.backends.client import SamplingParams  # noqa: E402
from evsys_sdk.backends.datum import Datum  # noqa: E402

from .test_architectures import FAMILIES, Reference, adapted, build  # noqa: E402

type MakeClient = Callable[..., Any]

LENGTHS, SHARED = (150, 203, 64, 9, 130), 70
"""Several chunks of the delta rule each; the first three begin alike."""


def long_data() -> list[Datum]:
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 256, length) for length in LENGTHS]
    for text in texts[:3]:
        text[:SHARED] = texts[0][: min(SHARED, len(text))]
    return [Datum.supervised(text.tolist(), [1.0] * len(text)) for text in texts]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    arch, config = FAMILIES["Qwen3.5"]
    return build(tmp_path / "model", arch, **config, max_position_embeddings=512)


def test_long_texts_with_a_shared_beginning_have_the_model_s_own_logprobs(folder: str, make_client: MakeClient) -> None:
    client = make_client(name=folder)
    reference = Reference(folder, adapted(client))
    data = long_data()
    for logprobs, datum in zip(client.forward(data).result().logprobs, data, strict=True):
        with torch.no_grad():
            expected = reference.logprobs(datum.tokens)
        expected = expected.gather(1, torch.from_numpy(datum.target_tokens)[:, None])[:, 0]
        np.testing.assert_allclose(logprobs, expected.numpy(), atol=2e-4)


def test_gradients_do_not_depend_on_rows_sharing_or_recomputation(folder: str, make_client: MakeClient) -> None:
    gradients: list[Any] = []
    for params in ({}, {"share_prefixes": False}, {"tokens_at_once": 256}, {"recompute": "always"}):
        client = make_client(name=folder, params=params)
        adapted(client)
        client.forward_backward(long_data(), "cross_entropy").result()
        gradients.append(torch.cat([tensor.flatten() for tensor in client._state.optimizer._gradient]))
    for other in gradients[1:]:
        assert float((other - gradients[0]).abs().max()) <= 3e-5 * float(gradients[0].abs().max())
    assert torch.equal(gradients[0], gradients[3])


def test_samples_that_join_late_continue_from_the_end_of_their_prompt(folder: str, make_client: MakeClient) -> None:
    prompt = list(range(90))
    samples: list[list[Any]] = []
    for lanes in (8, 2):
        client = make_client(name=folder, params={"samples_at_once": lanes})
        adapted(client)
        sampler = client.sampler().result()
        pending = [sampler.sample(prompt, 5, SamplingParams(9 + more, seed=3, stop=[])) for more in range(2)]
        samples.append([sample for operation in pending for sample in operation.result()])
    assert [sample.tokens for sample in samples[0]] == [sample.tokens for sample in samples[1]]
    for first, other in zip(*samples, strict=True):
        np.testing.assert_allclose(first.logprobs, other.logprobs, atol=1e-4)
