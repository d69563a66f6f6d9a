"""Probes of the backend conformance suite: training data, and measurements of gradients from outside.

Gradients are measured by the effect of a step on log-probabilities: with a huge eps and no momentum, Adam's step is
proportional to the gradient.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ..backends.client import AdamParams, TrainingClient
from ..backends.datum import Datum, Floats
from ..backends.probes.training import logprobs_of, probe_data

# Adam divides by the gradient's size plus eps; next to this eps the size is negligible.
_HUGE = 1e6


class ClientProbes(abc.ABC):
    """The base of all conformance suites of backends."""

    linear_rate: float = 1e-6
    """Size of a step in units of the gradient: small enough that its effect on log-probabilities is linear."""
    learning_rate: float = 5e-4
    """A rate at which a few ordinary steps change the loss measurably."""
    logprob_tolerance: float = 1e-3
    """Largest difference of log-probabilities of the same tokens between passes, and between training and sampling."""
    linear_tolerance: float = 0.05
    """Largest relative deviation of an effect from proportionality."""
    exact_resume: bool = True
    """Whether a restored state continues bit-identically."""

    @abc.abstractmethod
    def make_client(self) -> TrainingClient:
        """A fresh client; all of them start from the same weights."""

    @pytest.fixture
    def client(self) -> Iterator[TrainingClient]:
        """A fresh client for one test."""
        with self.fresh() as client:
            yield client

    @contextlib.contextmanager
    def fresh(self) -> Generator[TrainingClient]:
        """A new client, closed at the end of the block."""
        client = self.make_client()
        try:
            yield client
        finally:
            client.close()

    def data(self, client: TrainingClient, loss_fn: str = "cross_entropy") -> list[Datum]:
        """Two data of different length for a loss, sampled from a slightly different policy."""
        data = probe_data(client)
        if loss_fn == "cross_entropy":
            return data
        # Small and large drifts in both directions, so that losses clip some tokens and not others.
        drift = np.resize(np.array([0.05, -0.3, 0.4, -0.1, 0.0002, 1.7], np.float32), 64)
        advantage = np.resize(np.array([1.0, -0.5, 0.8, -1.2], np.float32), 64)
        moved: list[Datum] = []
        for datum, logprobs in zip(data, client.forward(data).result().logprobs, strict=True):
            sampled = datum.weights != 0
            values = {
                "logprobs": np.where(sampled, logprobs - drift[: len(datum)], 0).astype(np.float32),
                "advantages": np.where(sampled, advantage[: len(datum)], 0).astype(np.float32),
            }
            moved.append(dataclasses.replace(datum, **values))
        return moved

    def linear_step(self, client: TrainingClient) -> dict[str, float]:
        """A step that moves the weights by the accumulated gradient times `linear_rate`."""
        # The factor compensates the eps.
        adam = AdamParams(self.linear_rate * _HUGE, beta1=0.0, beta2=0.0, eps=_HUGE)
        return client.optim_step(adam).result().metrics

    def learn(self, client: TrainingClient, steps: int = 3) -> None:
        """A few ordinary steps."""
        for _ in range(steps):
            client.forward_backward(self.data(client), "cross_entropy")
            client.optim_step(AdamParams(self.learning_rate)).result()

    def effect(self, submit: Callable[[TrainingClient], Any]) -> Floats:
        """The change of log-probabilities by a linear step after `submit`, from a new client."""
        with self.fresh() as client:
            before = logprobs_of(client, self.data(client))
            submit(client)
            self.linear_step(client)
            return logprobs_of(client, self.data(client)) - before

    def assert_proportional(self, effect: Floats, other: Floats, factor: float) -> None:
        """Assert that `other` is `factor` times `effect`."""
        scale = float(np.abs(effect).max())
        assert scale > 0, "the step changed nothing; raise linear_rate"
        assert np.abs(other - factor * effect).max() <= self.linear_tolerance * factor * scale


def make_datum(prompt: Sequence[int], answer: Sequence[int]) -> Datum:
    """A datum that trains `answer` after `prompt`."""
    return Datum.supervised([*prompt, *answer], [0.0] * len(prompt) + [1.0] * len(answer))


def soften(datum: Datum) -> Datum:
    """A copy of a datum with a second weighted target per position."""
    targets = np.stack((datum.target_tokens, np.roll(datum.target_tokens, 1)), axis=1)
    return dataclasses.replace(
        datum, target_tokens=targets, weights=datum.weights[:, None] * np.array([0.7, 0.3], np.float32)
    )


def only_target(datum: Datum, column: int) -> Datum:
    """A copy of a soft datum with one of its targets per position."""
    targets, weights = datum.target_tokens[:, column], datum.weights[:, column]
    return dataclasses.replace(datum, target_tokens=targets, weights=weights)


def mistaken(mistake: str, good: Sequence[Datum], vocab_size: int) -> tuple[list[Datum], str]:
    """Invalid data and loss for a kind of mistake."""
    first = good[0]
    broken: dict[str, dict[str, Any]] = {
        "lengths": {"target_tokens": first.target_tokens[:-1]},
        "token": {"tokens": np.where(np.arange(len(first)) == 1, vocab_size, first.tokens)},
        "target": {"target_tokens": np.where(np.arange(len(first)) == 1, -1, first.target_tokens)},
        "nan": {"weights": np.where(np.arange(len(first)) == 2, np.nan, first.weights).astype(np.float32)},
        "inf": {"weights": np.where(np.arange(len(first)) == 2, np.inf, first.weights).astype(np.float32)},
    }
    if mistake == "empty":
        return [], "cross_entropy"
    if mistake == "advantages":
        return list(good), "importance_sampling"
    if mistake == "loss":
        return list(good), "cross_entropi"
    return [dataclasses.replace(first, **broken[mistake]), *good[1:]], "cross_entropy"


def make_name() -> str:
    """A new name of a checkpoint."""
    return f"conformance-{secrets.token_hex(4)}"
