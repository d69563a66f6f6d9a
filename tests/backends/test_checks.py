from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends import checks
from evsys_sdk.backends.client import AdamParams, Capabilities, SamplingParams
from evsys_sdk.backends.datum import Datum
from evsys_sdk.errors import BackendError, DataError

CAPABILITIES = Capabilities(
    backend="test",
    vocab_size=10,
    context_length=6,
    losses=frozenset({"cross_entropy", "ppo"}),
    suggested_learning_rate=1e-4,
    top_k_logprobs=3,
)
GOOD = Datum.supervised([1, 2, 3, 4], [0, 0, 1, 1])
POLICY = Datum.policy([1, 2], [3, 4], [-0.1, -0.2], [1.0, -1.0])


def _with(values: Any, index: int, value: float) -> Any:
    changed = np.array(values)
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens": GOOD.tokens[:0]}, r"datum 1: tokens are shaped \(0,\)"),
        ({"tokens": np.ones(7, np.int64)}, "datum 1: 7 tokens do not fit into the context of 6"),
        (
            {"tokens": _with(GOOD.tokens, 1, 10)},
            r"datum 1: tokens\[1\] is 10, which is not in the vocabulary \(0\.\.9\)",
        ),
        ({"tokens": GOOD.tokens + 0.5}, "datum 1: tokens must be integers"),
        ({"target_tokens": _with(GOOD.target_tokens, 2, -1)}, r"datum 1: target_tokens\[2\] is -1"),
        ({"target_tokens": GOOD.target_tokens[1:]}, r"datum 1: 3 tokens, but target_tokens are shaped \(2,\)"),
        ({"weights": GOOD.weights[1:]}, r"datum 1: weights are shaped \(2,\), but must be shaped \(3,\)"),
        ({"weights": _with(GOOD.weights, 2, np.nan)}, r"datum 1: weights\[2\] is nan"),
        ({"advantages": _with(GOOD.weights, 0, np.inf)}, r"datum 1: advantages\[0\] is inf"),
        ({"logprobs": GOOD.weights[:1]}, "datum 1: logprobs are shaped"),
    ],
)
def test_bad_data_are_refused_with_index_position_and_value(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        checks.check_data([GOOD, dataclasses.replace(GOOD, **bad)], CAPABILITIES)


def test_good_data_pass() -> None:
    soft = Datum(GOOD.tokens, np.ones((3, 2), np.int64), np.ones((3, 2), np.float32))
    checks.check_data([GOOD, POLICY, soft], CAPABILITIES)
    checks.check_data([POLICY], CAPABILITIES, "ppo")


def test_policy_losses_need_their_fields_and_one_target() -> None:
    with pytest.raises(DataError, match=r"datum 0: the loss 'ppo' needs advantages.*Datum\.policy"):
        checks.check_data([GOOD], CAPABILITIES, "ppo")
    soft = dataclasses.replace(POLICY, target_tokens=np.ones((3, 2), np.int64), weights=np.ones((3, 2), np.float32))
    with pytest.raises(DataError, match="one target per position"):
        checks.check_data([soft], CAPABILITIES, "ppo")


def test_soft_targets_need_a_backend_that_takes_them() -> None:
    soft = Datum(GOOD.tokens, np.ones((3, 2), np.int64), np.ones((3, 2), np.float32))
    with pytest.raises(DataError, match="takes no soft targets"):
        checks.check_data([soft], dataclasses.replace(CAPABILITIES, soft_targets=False))


def test_no_data_and_things_that_are_no_data_are_refused() -> None:
    with pytest.raises(DataError, match="no data"):
        checks.check_data([], CAPABILITIES)
    with pytest.raises(DataError, match="datum 0 is a dict"):
        checks.check_data([{}], CAPABILITIES)  # pyright: ignore[reportArgumentType]


def test_losses_are_distinguished() -> None:
    with pytest.raises(BackendError, match=r"Did you mean 'ppo'\? This backend has cross_entropy, ppo"):
        checks.check_loss("pppo", None, CAPABILITIES)
    with pytest.raises(BackendError, match="the backend 'test' has no loss 'dro'; it has cross_entropy, ppo"):
        checks.check_loss("dro", None, CAPABILITIES)
    checks.check_loss("ppo", {"clip_high_threshold": 1.3}, CAPABILITIES)


@pytest.mark.parametrize(
    ("adam", "message"),
    [
        (AdamParams(float("nan")), "learning_rate"),
        (AdamParams(-1e-3), "learning_rate"),
        (AdamParams(weight_decay=-1), "weight_decay"),
        (AdamParams(grad_clip_norm=float("inf")), "grad_clip_norm"),
        (AdamParams(beta1=1.0), "beta1"),
        (AdamParams(beta2=-0.1), "beta2"),
        (AdamParams(eps=0.0), "eps"),
    ],
)
def test_ruinous_steps_are_refused(adam: AdamParams, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        checks.check_adam(adam)


@pytest.mark.parametrize(
    ("params", "number", "message"),
    [
        (SamplingParams(5), 1, r"a prompt of 2 tokens and max_tokens=5 make 7, more than the context of 6"),
        (SamplingParams(2), 0, "num_samples"),
        (SamplingParams(2, temperature=float("nan")), 1, "temperature"),
        (SamplingParams(2, top_k=-2), 1, "top_k"),
        (SamplingParams(2, top_p=1.1), 1, "top_p"),
        (SamplingParams(2, stop="\n"), 1, r"stop must be a list"),
        (SamplingParams(2, stop=["a", 3]), 1, "not both"),  # pyright: ignore[reportArgumentType]
        (SamplingParams(2, stop=[""]), 1, "empty text"),
    ],
)
def test_impossible_requests_are_refused(params: SamplingParams, number: int, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        checks.check_sampling([1, 2], number, params, CAPABILITIES)


def test_top_k_is_bounded_by_the_backend() -> None:
    checks.check_top_k(3, CAPABILITIES)
    with pytest.raises(BackendError, match="between 1 and 3"):
        checks.check_top_k(4, CAPABILITIES)
