"""What comes over the wire is bit for bit what the same backend gives in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.losses import LOSSES

from .in_process import PROMPT, as_tinker, mock_client, policy, soft, supervised

pytestmark = pytest.mark.tinker

ADAM = {"learning_rate": 3e-3, "weight_decay": 0.01, "grad_clip_norm": 5.0}


@pytest.fixture
def client(service: Any) -> Any:
    return service.create_lora_training_client("tiny", rank=8, seed=1)


def assert_same(over_wire: Any, here: Any) -> None:
    assert over_wire.metrics["loss:sum"] == here.loss
    for got, expected in zip(over_wire.loss_fn_outputs, here.logprobs, strict=True):
        assert np.array_equal(np.asarray(got["logprobs"].data, np.float32).reshape(got["logprobs"].shape), expected)


@pytest.mark.parametrize("loss_fn", sorted(LOSSES))
def test_every_loss_trains_the_same_model(client: Any, tmp_path: Path, loss_fn: str) -> None:
    from tinker import types

    here = mock_client(tmp_path)
    data = supervised() if loss_fn == "cross_entropy" else policy(here)
    wire = [as_tinker(datum) for datum in data]
    for _ in range(3):
        backward, step = client.forward_backward(wire, loss_fn), client.optim_step(types.AdamParams(**ADAM))
        expected, expected_step = here.forward_backward(data, loss_fn), here.optim_step(AdamParams(**ADAM))
        assert_same(backward.result(60), expected.result())
        assert step.result(60).metrics == expected_step.result().metrics
        for key, value in expected.result().metrics.items():
            assert backward.result().metrics[f"{key}:mean"] == pytest.approx(value, rel=1e-12)  # the package averages
    assert_same(client.forward(wire, loss_fn).result(60), here.forward(data, loss_fn).result())


def test_the_parameters_of_a_loss_arrive(client: Any, tmp_path: Path) -> None:
    here = mock_client(tmp_path)
    data, config = policy(here), {"clip_low_threshold": 0.95, "clip_high_threshold": 1.01}
    over_wire = client.forward_backward([as_tinker(datum) for datum in data], "ppo", config).result(60)
    assert_same(over_wire, here.forward_backward(data, "ppo", config).result())


def test_without_weights_what_was_sampled_counts(client: Any, tmp_path: Path) -> None:
    here = mock_client(tmp_path)
    data = policy(here)
    wire = [as_tinker(datum) for datum in data]
    for datum in wire:
        del datum.loss_fn_inputs["weights"]
    assert_same(client.forward_backward(wire, "gspo").result(60), here.forward_backward(data, "gspo").result())


def test_soft_targets_dense_and_sparse(client: Any, tmp_path: Path) -> None:
    from tinker import types

    here, data = mock_client(tmp_path), soft()
    expected = here.forward_backward(data, "cross_entropy").result()
    assert_same(client.forward_backward([as_tinker(d) for d in data], "cross_entropy").result(60), expected)
    sparse = [
        types.Datum(
            model_input=types.ModelInput.from_ints(datum.tokens.tolist()),
            loss_fn_inputs={"target_tokens": compressed(datum.target_tokens), "weights": compressed(datum.weights)},
        )
        for datum in data
    ]
    assert_same(client.forward_backward(sparse, "cross_entropy").result(60), expected)


def compressed(array: Any) -> Any:
    """A tensor in compressed rows, as the package makes them from torch."""
    from tinker import types

    rows, columns = np.nonzero(array)
    return types.TensorData(
        data=array[rows, columns],
        dtype="int64" if array.dtype == np.int64 else "float32",
        shape=list(array.shape),
        sparse_crow_indices=[0, *np.cumsum(np.bincount(rows, minlength=len(array))).tolist()],
        sparse_col_indices=columns.tolist(),
    )


def test_a_batch_in_many_parts_is_the_same_batch(service: Any, tmp_path: Path) -> None:
    """The package sends parts at once and the first one last; the order of the sum must not depend on that."""
    from tinker import types

    client = service.create_lora_training_client("tiny", rank=8, seed=1)
    client.holder._client_config = client.holder._client_config.model_copy(update={"fwdbwd_max_chunk_len": 2})
    here, data = mock_client(tmp_path), supervised(count=9)
    for _ in range(2):
        over_wire = client.forward_backward([as_tinker(datum) for datum in data], "cross_entropy")
        step = client.optim_step(types.AdamParams(**ADAM))
        parts = [here.forward_backward(data[i : i + 2], "cross_entropy") for i in range(0, 9, 2)]
        expected = here.optim_step(AdamParams(**ADAM)).result()
        assert step.result(60).metrics == expected.metrics
        losses = [part.result().loss for part in parts]
        assert over_wire.result(60).metrics["loss:sum"] == np.sum(losses).item()


def test_a_custom_loss_as_weights_has_its_gradient(client: Any, tmp_path: Path) -> None:
    """What the package does for a custom loss: a forward pass, then weights that are minus the gradient."""
    from tinker import types

    here, data = mock_client(tmp_path), supervised()
    forward = client.forward([as_tinker(datum) for datum in data], "cross_entropy").result(60)
    logprobs = [np.asarray(out["logprobs"].data, np.float32) for out in forward.loss_fn_outputs]
    surrogate = [
        Datum(d.tokens, d.target_tokens, (2 * lp * d.weights).astype(np.float32))
        for d, lp in zip(data, logprobs, strict=True)
    ]
    client.forward_backward([as_tinker(datum) for datum in surrogate], "cross_entropy").result(60)
    here.forward_backward(surrogate, "cross_entropy")
    got = client.optim_step(types.AdamParams(**ADAM)).result(60).metrics
    assert got == here.optim_step(AdamParams(**ADAM)).result().metrics


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 12, "seed": 3},
        {"max_tokens": 12, "seed": 3, "temperature": 0.0},
        {"max_tokens": 20, "seed": 4, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
        {"max_tokens": 20, "seed": 5, "stop": ["e"]},
        {"max_tokens": 20, "seed": 5, "stop": [101]},
        {"max_tokens": 20, "seed": 6, "stop": []},
    ],
)
def test_samples_follow_from_the_seed(client: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    from tinker import types

    here = mock_client(tmp_path)
    sampler = client.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(PROMPT)
    got = sampler.sample(prompt, 3, types.SamplingParams(**options)).result(60)
    expected = here.sampler().result().sample(PROMPT, 3, SamplingParams(**options)).result()
    assert [list(s.tokens) for s in got.sequences] == [s.tokens for s in expected]
    assert [s.stop_reason for s in got.sequences] == [s.stop_reason for s in expected]
    for first, other in zip(got.sequences, expected, strict=True):
        assert np.array_equal(np.asarray(first.logprobs, np.float32), np.asarray(other.logprobs, np.float32))
    assert len({s.sequence_id for s in got.sequences}) == 3


def test_logprobs_of_the_prompt_and_the_best_tokens(client: Any, tmp_path: Path) -> None:
    from tinker import types

    here = mock_client(tmp_path).sampler().result()
    sampler = client.save_weights_and_get_sampling_client()
    prompt, params = types.ModelInput.from_ints(PROMPT), types.SamplingParams(max_tokens=3, seed=1, stop=[])
    got = sampler.sample(
        prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=4, topk_sample_logprobs=2
    ).result(60)
    scored, top = here.logprobs(PROMPT).result(), here.topk_logprobs(PROMPT, 4).result()
    assert got.prompt_logprobs[0] is None
    assert np.array_equal(np.asarray(got.prompt_logprobs[1:], np.float32), scored[1:])
    assert np.array_equal(got.topk_prompt_logprobs_np.token_ids[1:], top.tokens[1:])
    assert np.array_equal(got.topk_prompt_logprobs_np.logprobs[1:], top.logprobs[1:])
    for sequence in got.sequences:
        whole = here.topk_logprobs([*PROMPT, *sequence.tokens], 2).result()
        assert np.array_equal(sequence.topk_logprobs_np.token_ids, whole.tokens[len(PROMPT) :])
    assert sampler.compute_logprobs(prompt).result(60)[0] is None
    last = sampler.compute_logprobs(prompt, prompt_logprobs_last_n=2).result(60)
    assert last[:-2] == [None] * (len(PROMPT) - 2)
    assert np.array_equal(np.asarray(last[-2:], np.float32), scored[-2:])


def test_the_base_model_can_be_sampled(service: Any, tmp_path: Path) -> None:
    from tinker import types

    got = (
        service.create_sampling_client(base_model="tiny")
        .compute_logprobs(types.ModelInput.from_ints(PROMPT))
        .result(60)
    )
    expected = mock_client(tmp_path, seed=0).sampler().result().logprobs(PROMPT).result()
    assert np.array_equal(np.asarray(got[1:], np.float32), expected[1:])
