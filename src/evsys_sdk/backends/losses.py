"""The named losses: formulas on the log-probabilities of the targets, with gradients.

All are **sums over tokens and data**. With r = exp(logprob - logprob at sampling time) and A the advantage:

    cross_entropy         -sum w * logprob
    importance_sampling   -sum r * A
    ppo                   -sum min(r * A, clip(r, low, high) * A)
    cispo                 -sum stop_gradient(clip(r, low, high)) * A * logprob
    dro                   -sum (logprob * A - beta / 2 * (log r)^2), over the sampled positions
    gspo                  ppo with one ratio per sequence, the geometric mean of r over its sampled positions; the
                          gradient is that of the token's own logprob

In policy losses, sampled positions have a weight other than 0; scale through the advantages.

A backend with a weighted cross-entropy can train with any of them and with custom losses (see `LossCallable`): the
weights are minus the gradient computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from ..errors import BackendError, show, suggest
from .datum import Datum, Floats

type LossCallable = Callable[[Sequence[Datum], Sequence[Any]], Any]
"""(data, logprobs) -> (loss, metrics).

With torch installed, logprobs are torch tensors and autograd computes the gradient. A function marked with `numpy_loss`
gets numpy arrays and returns (loss, metrics, gradients).
"""

type LossResult = tuple[float, dict[str, float], list[Floats]]
"""Loss, metrics, and the gradient with respect to each datum's logprobs."""

type Loss = Callable[[Sequence[Datum], Sequence[Floats]], LossResult]
"""(data, log-probabilities of their targets) -> the loss with its gradient."""

type _Formula = Callable[[Datum, Floats, Mapping[str, float]], tuple[float, Floats]]

_CONFIG: dict[str, dict[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
}
"""Named losses and the parameters each takes, with their defaults."""

LOSSES: frozenset[str] = frozenset(_CONFIG)


_LARGEST_LOG_RATIO = 60.0
"""Clip for log-ratios, so that the product with an advantage of 0 stays 0."""


def numpy_loss[F: LossCallable](function: F) -> F:
    """Mark a loss that takes numpy arrays and returns its gradients."""
    function.returns_gradients = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def find_loss(name: str, config: Mapping[str, Any] | None = None) -> Loss:
    """The named loss as a function of data and logprobs."""
    return partial(_apply, name, check_config(name, config))


def _apply(name: str, params: Mapping[str, float], data: Sequence[Datum], logprobs: Sequence[Floats]) -> LossResult:
    parts = [_FORMULAS[name](datum, lp, params) for datum, lp in zip(data, logprobs, strict=True)]
    metrics = _policy_metrics(data, logprobs, params) if name != "cross_entropy" else {}
    return float(sum(part[0] for part in parts)), metrics, [part[1] for part in parts]


def custom_loss(function: LossCallable) -> Loss:
    """A custom loss in the same form, with the gradient from torch or from the function itself."""
    if getattr(function, "returns_gradients", False) or not _has_torch():
        return lambda data, logprobs: _from_numpy(function, data, logprobs)
    return lambda data, logprobs: _from_torch(function, data, logprobs)


def _from_numpy(function: LossCallable, data: Sequence[Datum], logprobs: Sequence[Floats]) -> LossResult:
    # Copies, so that in-place changes do not reach the reported log-probabilities.
    returned: Any = function(data, [lp.copy() for lp in logprobs])
    _check_returned(function, returned, (2, 3))
    if len(returned) != 3:
        raise BackendError(
            f"{_name_of(function)} returned no gradients. Return (loss, metrics, gradients) and mark it with "
            "@numpy_loss, or install torch, which derives them."
        )
    return _with_gradients(returned, logprobs)


def _check_returned(function: LossCallable, returned: Any, lengths: Sequence[int]) -> None:
    is_right = isinstance(returned, tuple) and len(cast("Any", returned)) in lengths
    if not is_right or not isinstance(returned[1], Mapping):
        raise BackendError(
            f"{_name_of(function)} returned {show(cast('Any', returned))}. Return (loss, metrics), with metrics a "
            "mapping from names to numbers."
        )


def _name_of(function: LossCallable) -> str:
    return getattr(function, "__name__", "the loss")


def _with_gradients(returned: Any, logprobs: Sequence[Floats]) -> LossResult:
    loss, metrics, gradients = returned
    return _check(float(loss), dict(metrics), [np.asarray(g, dtype=np.float32) for g in gradients], logprobs)


def _from_torch(function: LossCallable, data: Sequence[Datum], logprobs: Sequence[Floats]) -> LossResult:
    import torch  # pyright: ignore[reportMissingImports]

    tensors: Any = [torch.tensor(lp, requires_grad=True) for lp in logprobs]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    returned: Any = function(data, tensors)
    _check_returned(function, returned, (2, 3))
    if len(returned) == 3:
        return _with_gradients(returned, logprobs)
    loss, metrics = returned
    if not torch.is_tensor(loss) or loss.numel() != 1 or not loss.requires_grad:  # pyright: ignore[reportUnknownMemberType]
        raise BackendError(
            f"{_name_of(function)} returned a loss from which no gradient can be derived ({type(loss).__name__}). "
            "Return a tensor with one number, computed from the log-probabilities without detach() or item()."
        )
    loss.backward()
    # A loss may ignore a datum, which then has no gradient.
    gradients = [
        np.zeros_like(lp) if t.grad is None else t.grad.numpy() for t, lp in zip(tensors, logprobs, strict=True)
    ]
    return _check(float(loss.detach()), dict(metrics), gradients, logprobs)


def _check(loss: float, metrics: dict[str, Any], gradients: list[Floats], logprobs: Sequence[Floats]) -> LossResult:
    shapes = [g.shape for g in gradients]
    if shapes != [lp.shape for lp in logprobs]:
        raise BackendError(f"the loss returned gradients shaped {shapes}; they must be shaped like the logprobs.")
    if not np.isfinite(loss) or not all(np.isfinite(g).all() for g in gradients):
        raise BackendError(f"the loss is {loss} or its gradient is not finite. Check it for log(0) and division by 0.")
    return loss, {key: _metric(key, value) for key, value in metrics.items()}, gradients


def _metric(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise BackendError(f"the loss returned the metric '{name}' as {show(value)}. Return one number.") from None


def _cross_entropy(datum: Datum, lp: Floats, params: Mapping[str, float]) -> tuple[float, Floats]:
    return -float((datum.weights * lp).sum(dtype=np.float64)), -datum.weights


def _importance_sampling(datum: Datum, lp: Floats, params: Mapping[str, float]) -> tuple[float, Floats]:
    # Sums in float64 here and below: the loss of a long batch is a small difference of large terms.
    surrogate = _ratio(datum, lp) * _advantages(datum)
    return -float(surrogate.sum(dtype=np.float64)), -surrogate  # d ratio / d logprob = ratio


def _ppo(datum: Datum, lp: Floats, params: Mapping[str, float]) -> tuple[float, Floats]:
    ratio, advantages = _ratio(datum, lp), _advantages(datum)
    clipped = np.clip(ratio, params["clip_low_threshold"], params["clip_high_threshold"]) * advantages
    surrogate = np.minimum(ratio * advantages, clipped)
    # No gradient where the clipped term is the minimum: it does not depend on the policy.
    gradient = np.where(ratio * advantages <= clipped, -ratio * advantages, 0.0)
    return -float(surrogate.sum(dtype=np.float64)), gradient.astype(np.float32)


def _gspo(datum: Datum, lp: Floats, params: Mapping[str, float]) -> tuple[float, Floats]:
    sampled = datum.weights != 0
    log_ratio = (lp - _sampled_logprobs(datum))[sampled]
    ratio = np.exp(np.minimum(log_ratio.mean(), _LARGEST_LOG_RATIO)) if log_ratio.size else np.float32(1)
    unclipped = ratio * _advantages(datum)
    clipped = np.clip(ratio, params["clip_low_threshold"], params["clip_high_threshold"]) * _advantages(datum)
    # Not divided by the length: each sampled token gets the gradient of the whole ratio.
    gradient = np.where(unclipped <= clipped, -unclipped, 0.0)
    return -float(np.minimum(unclipped, clipped).sum(dtype=np.float64)), gradient.astype(np.float32)


def _cispo(datum: Datum, lp: Floats, params: Mapping[str, float]) -> tuple[float, Floats]:
    factor = np.clip(_ratio(datum, lp), params["clip_low_threshold"], params["clip_high_threshold"]) * _advantages(
        datum
    )
    return -float((factor * lp).sum(dtype=np.float64)), -factor


def _dro(datum: Datum, lp: Floats, params: Mapping[str, float]) -> tuple[float, Floats]:
    log_ratio = lp - _sampled_logprobs(datum)
    active = datum.weights != 0  # no penalty on the prompt
    penalty = np.where(active, 0.5 * params["beta"] * log_ratio**2, 0.0)
    gradient = -_advantages(datum) + np.where(active, params["beta"] * log_ratio, 0.0)
    loss = -float((_advantages(datum) * lp - penalty).sum(dtype=np.float64))
    return loss, gradient.astype(np.float32)


_FORMULAS: dict[str, _Formula] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
    "gspo": _gspo,
}


def check_config(name: str, config: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The parameters of a named loss with defaults; refuses unknown ones."""
    if name not in _CONFIG:
        hint = suggest(name, _CONFIG) or f"Known: {', '.join(sorted(_CONFIG))}."
        raise BackendError(f"there is no loss called '{name}'. {hint}")
    for key, value in (config or {}).items():
        if key not in _CONFIG[name]:
            takes = ", ".join(_CONFIG[name]) or "no parameters"
            raise BackendError(f"the loss '{name}' does not take '{key}'; it takes {takes}.")
        if not isinstance(value, int | float) or not 0 <= value < np.inf:
            raise BackendError(
                f"the parameter '{key}' of the loss '{name}' must be a number, 0 or more (got {show(value)})."
            )
    params = {**_CONFIG[name], **(config or {})}
    if params.get("clip_low_threshold", 0) > params.get("clip_high_threshold", 0):
        raise BackendError(f"the loss '{name}' has clip_low_threshold above clip_high_threshold (got {show(params)}).")
    return params


def _ratio(datum: Datum, lp: Floats) -> Floats:
    return np.exp(np.minimum(lp - _sampled_logprobs(datum), _LARGEST_LOG_RATIO))


def _sampled_logprobs(datum: Datum) -> Floats:
    assert datum.logprobs is not None  # checks.py has seen to it
    return datum.logprobs


def _advantages(datum: Datum) -> Floats:
    assert datum.advantages is not None  # checks.py has seen to it
    return datum.advantages


def _policy_metrics(data: Sequence[Datum], logprobs: Sequence[Floats], params: Mapping[str, float]) -> dict[str, float]:
    """Divergence of the policy from the sampling policy, over the sampled positions."""
    log_ratio = np.concatenate(
        [(lp - _sampled_logprobs(d))[d.weights != 0] for d, lp in zip(data, logprobs, strict=True)]
    )
    if not log_ratio.size:
        return {}
    ratio = np.exp(np.minimum(log_ratio, _LARGEST_LOG_RATIO))
    metrics = {
        "policy/ratio": float(ratio.mean()),
        # r - 1 - log r: unbiased like -log r, but non-negative and with less variance.
        "policy/kl": float((ratio - 1 - log_ratio).mean()),
        "policy/kl_k1": -float(log_ratio.mean()),
    }
    if "clip_low_threshold" in params:
        outside = (ratio < params["clip_low_threshold"]) | (ratio > params["clip_high_threshold"])
        metrics["policy/clip_fraction"] = float(outside.mean())
    return metrics


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None
