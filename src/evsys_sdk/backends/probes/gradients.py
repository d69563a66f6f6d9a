"""Seeing a gradient from outside: its size as a step reports it, or what a tiny step does to log-probabilities.

Steps are taken with a learning rate of 0 where the server reports the norm of the gradient, so that nothing changes.
Otherwise Adam is made linear (no momentum, a huge eps), and the change it makes is measured and undone by reloading.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..client import AdamParams, TrainingClient
from ..datum import Datum, Floats

_HUGE = 1e6
_LINEAR_RATE = 1e-6


def probe_data(client: TrainingClient) -> list[Datum]:
    """Two data of different length, only whose answers count."""
    pairs = [("The capital of France is", " Paris."), ("One two three", " four five six.")]
    encode = client.tokenizer.encode
    return [_supervised(encode(prompt), encode(answer)) for prompt, answer in pairs]


def _supervised(prompt: Sequence[int], answer: Sequence[int]) -> Datum:
    return Datum.supervised([*prompt, *answer], [0.0] * len(prompt) + [1.0] * len(answer))


def scaled(data: Sequence[Datum], factor: float) -> list[Datum]:
    """The data with all weights multiplied."""
    return [dataclasses.replace(datum, weights=datum.weights * np.float32(factor)) for datum in data]


def logprobs_of(client: TrainingClient, data: Sequence[Datum]) -> Floats:
    """Log-probabilities of all targets of all data, one after another."""
    plain = [dataclasses.replace(datum, advantages=None, logprobs=None) for datum in data]
    weighted = [dataclasses.replace(datum, weights=np.abs(datum.weights)) for datum in plain]
    return np.concatenate([lp.ravel() for lp in client.forward(weighted).result().logprobs])


class GradientScale:
    """The size of a gradient relative to others that were measured in the same way."""

    def __init__(self, client: TrainingClient) -> None:
        self._client = client
        self._reports_norm: bool | None = None
        self._start: str | None = None

    def __call__(self, submit: Callable[[TrainingClient], Any]) -> float:
        """Size of the gradient that `submit` adds."""
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
