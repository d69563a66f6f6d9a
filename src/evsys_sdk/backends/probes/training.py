"""Facts about training: definitions and availability of losses, and exactness of resume."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import BackendError, EvsysError
from ..client import AdamParams, TrainingClient
from ..datum import Datum, Floats
from ..losses import LOSSES, find_loss, numpy_loss
from .facts import AS_DOCUMENTED, REFUSED, LossReduction

# Measures a gradient from outside: its norm as reported by a step, or the effect of a tiny step on log-probabilities.
#
# If the server reports the gradient norm, steps have learning rate 0 and change nothing. Otherwise Adam is made linear
# (no momentum, a huge eps), and its change is measured and undone by reloading.

_HUGE = 1e6
_LINEAR_RATE = 1e-6


def probe_data(client: TrainingClient) -> list[Datum]:
    """Two data of different length, with loss on the answers only."""
    pairs = [("The capital of France is", " Paris."), ("One two three", " four five six.")]
    encode = client.tokenizer.encode
    encoded: list[tuple[list[int], list[int]]] = [(encode(prompt), encode(answer)) for prompt, answer in pairs]
    return [Datum.supervised(p + a, [0.0] * len(p) + [1.0] * len(a)) for p, a in encoded]


def scale_weights(data: Sequence[Datum], factor: float) -> list[Datum]:
    """The data with all weights multiplied."""
    return [dataclasses.replace(datum, weights=datum.weights * np.float32(factor)) for datum in data]


def logprobs_of(client: TrainingClient, data: Sequence[Datum]) -> Floats:
    """Log-probabilities of all targets of all data, concatenated."""
    plain = [dataclasses.replace(datum, advantages=None, logprobs=None) for datum in data]
    # Averaging servers refuse negative weights; log-probabilities do not depend on weights.
    weighted = [dataclasses.replace(datum, weights=np.abs(datum.weights)) for datum in plain]
    return np.concatenate([lp.ravel() for lp in client.forward(weighted).result().logprobs])


class GradientScale:
    """The norm of a gradient relative to others measured in the same way."""

    def __init__(self, client: TrainingClient) -> None:
        self._client = client
        self._reports_norm: bool | None = None
        self._start: str | None = None

    def __call__(self, submit: Callable[[TrainingClient], Any]) -> float:
        """The norm of the gradient that `submit` adds."""
        if self._reports_norm is not False:
            submit(self._client).result()
            metrics = self._client.optim_step(AdamParams(0.0)).result().metrics
            self._reports_norm = "grad_norm" in metrics
            if self._reports_norm:
                return metrics["grad_norm"]
        return self._by_effect(submit)

    def _by_effect(self, submit: Callable[[TrainingClient], Any]) -> float:
        client, data = self._client, probe_data(self._client)
        if self._start is None:
            self._start = client.save_state(f"doctor-{secrets.token_hex(4)}").result()
        client.load_state(self._start).result()
        before = logprobs_of(client, data)
        submit(client).result()
        client.optim_step(AdamParams(_LINEAR_RATE * _HUGE, beta1=0.0, beta2=0.0, eps=_HUGE)).result()
        effect = float(np.abs(logprobs_of(client, data) - before).max())
        client.load_state(self._start).result()
        return effect


_CLOSE = 0.05
"""Relative tolerance of equal gradients."""
_LEARNING_RATE = 1e-3
_SEEN = 1e-4
"""Smallest change of a log-probability above rounding errors."""


def loss_reduction(client: TrainingClient) -> LossReduction:
    """Whether losses are sums, or their divisor."""
    first, second = probe_data(client)
    size = GradientScale(client)

    def ratio(data: Sequence[Datum]) -> float:
        return size(lambda c: c.forward_backward(data, "cross_entropy")) / once

    once = size(lambda c: c.forward_backward([first], "cross_entropy"))
    if not once > 0:
        raise BackendError("a backward pass left no gradient, so nothing can be said about losses.")
    # Doubling the weights doubles the gradient, unless the divisor is the weights themselves.
    if not _same(ratio(scale_weights([first], 2)), 2):
        return "normalised"
    if _same(ratio([first, first]), 2):
        return "sum"
    # A datum without loss adds no gradient, so any decrease shows the divisor.
    silent = dataclasses.replace(second, weights=np.zeros_like(second.weights))
    together = ratio([first, silent])
    if _same(together, 0.5):
        return "mean_data"
    return "mean_tokens" if _same(together, len(first) / (len(first) + len(second))) else "normalised"


def loss_checks(client: TrainingClient) -> dict[str, str]:
    """Named loss -> `AS_DOCUMENTED`, or the deviation: value, gradient norm or refusal."""
    size = GradientScale(client)
    return {name: _check_loss(client, name, size) for name in sorted(LOSSES)}


def _check_loss(client: TrainingClient, name: str, size: GradientScale) -> str:
    data = policy_data(client) if name != "cross_entropy" else probe_data(client)
    try:
        output = client.forward_backward(data, name).result()
        client.optim_step(AdamParams(0.0)).result()
        value, _, gradients = find_loss(name)(data, output.logprobs)
        pairs = zip(data, gradients, strict=True)
        plain = [dataclasses.replace(datum, weights=-g, advantages=None, logprobs=None) for datum, g in pairs]
        documented = size(lambda c: c.forward_backward(plain, "cross_entropy"))
        measured = size(lambda c: c.forward_backward(data, name))
    except EvsysError as error:
        return f"{REFUSED}: {str(error).partition('. ')[0]}"
    if np.isfinite(output.loss) and not np.isclose(output.loss, value, rtol=_CLOSE, atol=1e-3):
        return f"value {output.loss:.4g}, documented {value:.4g}"
    if not _same(measured, documented):
        return f"gradient {measured / max(documented, 1e-12):.3g} times the documented one"
    return AS_DOCUMENTED


def policy_data(client: TrainingClient) -> list[Datum]:
    """Data for policy losses, sampled from a slightly different policy."""
    data = probe_data(client)
    shifted: list[Datum] = []
    for datum, lp in zip(data, client.forward(data).result().logprobs, strict=True):
        sampled = datum.weights != 0
        logprobs = np.where(sampled, lp - np.float32(0.1), 0).astype(np.float32)
        advantages = np.where(sampled, 0.5, 0).astype(np.float32)
        shifted.append(dataclasses.replace(datum, logprobs=logprobs, advantages=advantages))
    return shifted


def custom_loss(client: TrainingClient) -> bool:
    """Whether a custom loss has the gradient of the named loss it copies."""

    @numpy_loss
    def repeat(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        value = -sum(float((datum.weights * lp).sum()) for datum, lp in zip(data, logprobs, strict=True))
        # Doubled, to detect an unused gradient.
        return 2 * value, {}, [-2 * datum.weights for datum in data]

    data, size = probe_data(client), GradientScale(client)
    named = size(lambda c: c.forward_backward(data, "cross_entropy"))
    try:
        return _same(size(lambda c: c.forward_backward_custom(data, repeat)) / named, 2)
    except EvsysError:
        return False


def soft_targets(client: TrainingClient) -> bool:
    """Whether several targets per position give the gradient of their sum."""
    data = probe_data(client)
    twice = [_double(datum) for datum in data]
    size = GradientScale(client)
    hard = size(lambda c: c.forward_backward(data, "cross_entropy"))
    try:
        shapes = [lp.shape for lp in client.forward(twice).result().logprobs]
        soft = size(lambda c: c.forward_backward(twice, "cross_entropy"))
    except EvsysError:
        return False
    return shapes == [datum.target_tokens.shape for datum in twice] and _same(soft / hard, 1)


def _double(datum: Datum) -> Datum:
    """The same targets twice, with 0.7 and 0.3 of their weight."""
    targets = np.stack((datum.target_tokens, datum.target_tokens), axis=1)
    weights = datum.weights[:, None] * np.array([0.7, 0.3], np.float32)
    return dataclasses.replace(datum, target_tokens=targets, weights=weights)


def clips_gradients(client: TrainingClient) -> bool | None:
    """Whether gradient clipping makes a step smaller; None if steps are too small to decide."""
    data = probe_data(client)

    def change_with(bound: float) -> float:
        before = logprobs_of(client, data)
        client.forward_backward(data, "cross_entropy")
        # Adam normalises gradients; with a huge eps it is plain gradient descent, at a rate of 0.001
        client.optim_step(AdamParams(1e3, beta1=0.0, beta2=0.0, eps=1e6, grad_clip_norm=bound)).result()
        return float(np.abs(logprobs_of(client, data) - before).max())

    free = change_with(0.0)
    return None if free < _SEEN else change_with(1e-6) < free / 10


def exact_resume(client: TrainingClient) -> bool:
    """Whether a saved and loaded state continues exactly."""
    data = probe_data(client)
    _learn(client, data, 2)
    ref = client.save_state(f"doctor-{secrets.token_hex(4)}").result()
    _learn(client, data, 2)
    straight = logprobs_of(client, data)
    client.load_state(ref, with_optimizer=True).result()
    _learn(client, data, 2)
    return bool(np.array_equal(logprobs_of(client, data), straight))


def step_latency(client: TrainingClient) -> float:
    """Seconds of an optimiser step without a gradient, the fastest of three."""
    seconds: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        client.optim_step(AdamParams(0.0)).result()
        seconds.append(time.perf_counter() - began)
    # Other load can only make a step slower.
    return min(seconds)


def _learn(client: TrainingClient, data: Sequence[Datum], steps: int) -> None:
    for _ in range(steps):
        client.forward_backward(data, "cross_entropy")
        client.optim_step(AdamParams(_LEARNING_RATE)).result()


def _same(measured: float, expected: float) -> bool:
    return abs(measured - expected) <= _CLOSE * expected
