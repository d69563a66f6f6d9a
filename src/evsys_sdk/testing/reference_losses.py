"""Reference implementations of the named losses, differentiated numerically, to test backends.

Independent of `evsys_sdk.backends.losses`, so that one checks the other. `frozen` are the log-probabilities at which
the gradient is taken; formulas use them where the loss stops the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..backends.datum import Datum

type Values = NDArray[np.float64]
type Reference = Callable[[Datum, Values, Values], float]


def _cross_entropy(datum: Datum, lp: Values, frozen: Values) -> float:
    return float(-(datum.weights * lp).sum())


def _importance_sampling(datum: Datum, lp: Values, frozen: Values) -> float:
    return float(-(_ratio(datum, lp) * _advantages(datum)).sum())


def _ppo(datum: Datum, lp: Values, frozen: Values) -> float:
    ratio, advantages = _ratio(datum, lp), _advantages(datum)
    return float(-np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages).sum())


def _cispo(datum: Datum, lp: Values, frozen: Values) -> float:
    return float(-(np.clip(_ratio(datum, frozen), 0.0, 4.0) * _advantages(datum) * lp).sum())


def _dro(datum: Datum, lp: Values, frozen: Values) -> float:
    sampled = datum.weights != 0
    penalty = 0.5 * 0.05 * (lp - _sampled_logprobs(datum)) ** 2
    return float(-((lp * _advantages(datum) - penalty) * sampled).sum())


def _gspo(datum: Datum, lp: Values, frozen: Values) -> float:
    sampled = datum.weights != 0
    sequence_ratio = np.exp((frozen - _sampled_logprobs(datum))[sampled].mean())
    ratio = sequence_ratio * np.exp(lp - frozen)  # value of the sequence ratio, gradient of the token
    advantages = _advantages(datum)
    return float(-np.minimum(ratio * advantages, np.clip(ratio, 1 - 3e-4, 1 + 4e-4) * advantages).sum())


REFERENCES: dict[str, Reference] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
}
"""Formulas with the default parameters of each loss."""


def reference_loss(name: str, data: Sequence[Datum], logprobs: Sequence[NDArray[np.floating]]) -> float:
    """The value of a named loss."""
    exact = [np.asarray(lp, np.float64) for lp in logprobs]
    return sum(REFERENCES[name](datum, lp, lp) for datum, lp in zip(data, exact, strict=True))


def numerical_gradients(
    name: str, data: Sequence[Datum], logprobs: Sequence[NDArray[np.floating]], *, step: float = 1e-6
) -> list[NDArray[np.float32]]:
    """The gradient of a named loss with respect to every log-probability, by central differences."""
    gradients: list[NDArray[np.float32]] = []
    for datum, values in zip(data, logprobs, strict=True):
        frozen = np.asarray(values, np.float64)
        gradient = np.zeros_like(frozen)
        for index in np.ndindex(frozen.shape):
            up, down = frozen.copy(), frozen.copy()
            up[index] += step
            down[index] -= step
            gradient[index] = (REFERENCES[name](datum, up, frozen) - REFERENCES[name](datum, down, frozen)) / (2 * step)
        gradients.append(gradient.astype(np.float32))
    return gradients


def _ratio(datum: Datum, lp: Values) -> Values:
    return np.exp(lp - _sampled_logprobs(datum))


def _sampled_logprobs(datum: Datum) -> Values:
    assert datum.logprobs is not None
    return np.asarray(datum.logprobs, np.float64)


def _advantages(datum: Datum) -> Values:
    assert datum.advantages is not None
    return np.asarray(datum.advantages, np.float64)
