"""What SkyRL does differently without an error, seen with the stock tinker package alone.

These are not wishes: they pin what `evsys doctor` finds and what the backend `skyrl` assumes. When one of them fails
after an update of SkyRL, SkyRL has become better, and `SKYRL` in `backends/tinker/quirks.py` should follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from .running import SkyRLServer

pytestmark = pytest.mark.skyrl
TEXT = [70, 71, 72, 73, 74, 75]
LINEAR = {"learning_rate": 1e5, "beta1": 0.0, "beta2": 0.0, "eps": 1e6}
"""Adam that does what plain gradient descent with a rate of 0.1 does."""


@pytest.fixture
def service(server: SkyRLServer) -> Iterator[Any]:
    import tinker

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = tinker.ServiceClient(base_url=server.url, api_key="tml-any")
        yield client


def created(service: Any, server: SkyRLServer) -> Any:
    return service.create_lora_training_client(str(server.model), rank=8, seed=1)


def datum(weights: float = 1.0) -> Any:
    import tinker

    inputs = {"target_tokens": TEXT[1:], "weights": np.full(len(TEXT) - 1, weights, np.float32)}
    return tinker.types.Datum(model_input=tinker.types.ModelInput.from_ints(TEXT[:-1]), loss_fn_inputs=inputs)


def step(client: Any, data: list[Any], **adam: float) -> dict[str, float]:
    import tinker

    client.forward_backward(data, "cross_entropy").result(timeout=300)
    return client.optim_step(tinker.types.AdamParams(**adam)).result(timeout=300).metrics


def scores(client: Any) -> list[float]:
    return client.forward([datum()], "cross_entropy").result(timeout=300).loss_fn_outputs[0]["logprobs"].tolist()


def test_losses_are_divided_by_their_weights_and_the_number_of_data(service: Any, server: SkyRLServer) -> None:
    client = created(service, server)

    def norm(*data: Any) -> float:
        return step(client, list(data), learning_rate=0.0)["skyrl.ai/grad_norm"]

    once = norm(datum())
    assert norm(datum(2.0)) == pytest.approx(once, rel=1e-3), "a sum would be twice as large"
    assert norm(datum(), datum()) == pytest.approx(once, rel=1e-3)


def test_gradients_are_not_clipped(service: Any, server: SkyRLServer) -> None:
    free, clipped = created(service, server), created(service, server)
    before = scores(free)
    step(free, [datum()], **LINEAR)
    step(clipped, [datum()], **LINEAR, grad_clip_norm=1e-9)
    assert scores(clipped) == scores(free) != before


def test_a_model_that_does_not_exist_is_trained(service: Any, server: SkyRLServer) -> None:
    client = service.create_lora_training_client("no-such/model", rank=8, seed=1)
    assert scores(client) == scores(created(service, server)), "it is the only model there is"


def test_samples_have_no_ids_and_scores_no_first_entry(service: Any, server: SkyRLServer) -> None:
    import tinker

    from evsys_sdk.backends.tinker.backend import SkyRLBackend
    from evsys_sdk.backends.tinker.quirks import SKYRL

    sampler = created(service, server).save_weights_and_get_sampling_client()
    prompt, once = tinker.types.ModelInput.from_ints(TEXT), tinker.types.SamplingParams(max_tokens=1, seed=0)
    with pytest.raises(AssertionError):
        sampler.sample(prompt, 1, once).result(timeout=300)
    tolerant = SkyRLBackend().quirks(SKYRL).sampler(sampler)
    answer = tolerant.sample(prompt, 1, once, include_prompt_logprobs=True).result(timeout=300)
    assert len(answer.prompt_logprobs) == len(TEXT) - 1


def test_sampling_from_old_weights_undoes_training(service: Any, server: SkyRLServer) -> None:
    import tinker

    from evsys_sdk.backends.tinker.backend import SkyRLBackend
    from evsys_sdk.backends.tinker.quirks import SKYRL

    quirks = SkyRLBackend().quirks(SKYRL)
    client = created(service, server)
    untrained = scores(client)
    old = quirks.sampler(client.save_weights_and_get_sampling_client())
    for _ in range(3):
        step(client, [datum()], learning_rate=1e-2)
    quirks.sampler(client.save_weights_and_get_sampling_client())
    assert max(abs(a - b) for a, b in zip(scores(client), untrained, strict=True)) > 0.1
    prompt, once = tinker.types.ModelInput.from_ints(TEXT), tinker.types.SamplingParams(max_tokens=1, seed=0)
    old.sample(prompt, 1, once).result(timeout=300)
    np.testing.assert_allclose(scores(client), untrained, atol=1e-4)
