from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from evsys_sdk.backends import losses
from evsys_sdk.backends.datum import Datum, Floats
from evsys_sdk.errors import BackendError
from evsys_sdk.testing.reference_losses import REFERENCES, numerical_gradients, reference_loss


def _data(seed: int, *, soft: bool = False) -> tuple[list[Datum], list[Floats]]:
    noise = np.random.default_rng(seed)
    data: list[Datum] = []
    logprobs: list[Floats] = []
    for length in (3, 8):
        shape = (length, 4) if soft else (length,)
        sampled = np.arange(length) > 0
        lp = (-3 * noise.random(shape)).astype(np.float32)
        weights = noise.standard_normal(shape).astype(np.float32) if soft else sampled.astype(np.float32)
        old = None if soft else np.where(sampled, lp - 0.8 * noise.standard_normal(length), 0).astype(np.float32)
        advantages = None if soft else np.where(sampled, noise.standard_normal(length), 0).astype(np.float32)
        data.append(Datum(np.arange(length), np.zeros(shape, np.int64), weights, advantages, old))
        logprobs.append(lp)
    return data, logprobs


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_value_and_gradient_are_those_of_the_reference(name: str, seed: int) -> None:
    data, logprobs = _data(seed)
    loss, _, gradients = losses.find_loss(name)(data, logprobs)
    assert loss == pytest.approx(reference_loss(name, data, logprobs), rel=1e-5)
    for got, expected in zip(gradients, numerical_gradients(name, data, logprobs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_every_named_loss_has_a_reference() -> None:
    assert set(REFERENCES) == losses.LOSSES


def test_soft_targets_are_weighted_one_by_one() -> None:
    data, logprobs = _data(0, soft=True)
    loss, _, gradients = losses.find_loss("cross_entropy")(data, logprobs)
    assert loss == pytest.approx(reference_loss("cross_entropy", data, logprobs), rel=1e-5)
    assert all(np.array_equal(g, -d.weights) for g, d in zip(gradients, data, strict=True))


def test_clip_thresholds_are_taken_from_the_config() -> None:
    data, logprobs = _data(1)
    wide = losses.find_loss("ppo", {"clip_low_threshold": 0.0, "clip_high_threshold": 1e9})(data, logprobs)
    assert wide[0] == pytest.approx(losses.find_loss("importance_sampling")(data, logprobs)[0], rel=1e-5)
    assert wide[1]["policy/clip_fraction"] == 0
    assert losses.find_loss("ppo")(data, logprobs)[1]["policy/clip_fraction"] > 0


def test_on_policy_metrics_are_at_rest() -> None:
    data, logprobs = _data(2)
    same = [dataclasses.replace(d, logprobs=lp) for d, lp in zip(data, logprobs, strict=True)]
    metrics = losses.find_loss("ppo")(same, logprobs)[1]
    assert metrics == {"policy/ratio": 1.0, "policy/kl": 0.0, "policy/kl_k1": 0.0, "policy/clip_fraction": 0.0}


def test_an_absurd_old_logprob_on_the_prompt_makes_no_nan() -> None:
    datum = Datum.policy([1, 2, 3], [4], [-0.5], 1.0)
    assert datum.logprobs is not None
    datum.logprobs[0] = -1e4
    loss, _, gradients = losses.find_loss("importance_sampling")([datum], [np.full(3, -0.5, np.float32)])
    assert loss == pytest.approx(-1.0)
    assert np.isfinite(gradients[0]).all()


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("cross_entrpy", None, "Did you mean 'cross_entropy'"),
        ("ppo", {"clip": 0.2}, "does not take 'clip'; it takes clip_low_threshold"),
        ("ppo", {"clip_low_threshold": 2.0}, "above clip_high_threshold"),
        ("dro", {"beta": "much"}, "must be a number"),
        ("dro", {"beta": float("nan")}, "must be a number"),
    ],
)
def test_bad_configs_are_named(name: str, config: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        losses.find_loss(name, config)


def test_a_numpy_loss_returns_its_own_gradients() -> None:
    data, logprobs = _data(3)

    @losses.numpy_loss
    def squared(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        return sum((lp**2).sum() for lp in logprobs), {"half": 0.5}, [2 * lp for lp in logprobs]

    loss, metrics, gradients = losses.custom_loss(squared)(data, logprobs)
    assert loss == pytest.approx(sum(float((lp**2).sum()) for lp in logprobs))
    assert metrics == {"half": 0.5}
    np.testing.assert_allclose(gradients[1], 2 * logprobs[1])


def test_without_torch_a_plain_loss_must_bring_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_has_torch", lambda: False)
    data, logprobs = _data(4)

    def two_values(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        assert all(isinstance(lp, np.ndarray) for lp in logprobs)
        return 0.0, {}

    with pytest.raises(BackendError, match=r"two_values returned no gradients.*@numpy_loss.*torch"):
        losses.custom_loss(two_values)(data, logprobs)

    def three_values(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        return 1.0, {}, list(logprobs)

    assert losses.custom_loss(three_values)(data, logprobs)[0] == 1.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((float("nan"), {}, None), "not finite"),
        ((0.0, {}, "nan"), "not finite"),
        ((0.0, {}, "short"), "shaped like the logprobs"),
    ],
)
def test_what_a_loss_returns_is_checked(returned: Any, message: str) -> None:
    data, logprobs = _data(5)
    gradients = {
        None: [np.zeros_like(lp) for lp in logprobs],
        "nan": [np.full_like(lp, np.nan) for lp in logprobs],
        "short": [lp[:-1] for lp in logprobs],
    }[returned[2]]
    function = losses.numpy_loss(lambda data, logprobs: (returned[0], returned[1], gradients))
    with pytest.raises(BackendError, match=message):
        losses.custom_loss(function)(data, logprobs)


def test_torch_derives_the_gradient() -> None:
    torch = pytest.importorskip("torch")
    data, logprobs = _data(6)
    loss, _, gradients = losses.custom_loss(lambda data, lps: (sum((lp**3).sum() for lp in lps), {}))(data, logprobs)
    assert torch is not None
    assert loss == pytest.approx(sum(float((lp**3).sum()) for lp in logprobs), rel=1e-5)
    np.testing.assert_allclose(gradients[0], 3 * logprobs[0] ** 2, rtol=1e-5)
