"""What the conformance suite of backends measures with: data to train on, and ways to see a gradient from outside.

Gradients are read from what a step does to log-probabilities: with a huge eps and no momentum Adam's step is
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

# Adam divides by the gradient's own size plus eps; next to such an eps that size does not matter.
_HUGE = 1e6


class ClientProbes(abc.ABC):
    """What all parts of the suite share."""

    linear_rate: float = 1e-6
    """Size of a step in units of the gradient: small enough that its effect on log-probabilities is linear."""
    learning_rate: float = 5e-4
    """A rate at which a few ordinary steps visibly learn."""
    logprob_tolerance: float = 1e-3
    """How far log-probabilities of the same tokens may differ between passes and between training and sampling."""
    linear_tolerance: float = 0.05
    """How far, relatively, an effect may be from proportional."""
    exact_resume: bool = True
    """Whether a restored state continues bit by bit as the uninterrupted one does."""

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
        """One more client, closed at the end of the block."""
        client = self.make_client()
        try:
            yield client
        finally:
            client.close()

    def data(self, client: TrainingClient, loss_fn: str = "cross_entropy") -> list[Datum]:
        """Two data of different length, for any loss, whose policy lies a little off the present one."""
        data = probe_data(client)
        if loss_fn == "cross_entropy":
            return data
        # Off by little and by much, in both directions: some tokens lie where a loss clips, and some where it does not.
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
        # The rate is larger by as much as the eps makes the step smaller.
        adam = AdamParams(self.linear_rate * _HUGE, beta1=0.0, beta2=0.0, eps=_HUGE)
        return client.optim_step(adam).result().metrics

    def learn(self, client: TrainingClient, steps: int = 3) -> None:
        """A few ordinary steps."""
        for _ in range(steps):
            client.forward_backward(self.data(client), "cross_entropy")
            client.optim_step(AdamParams(self.learning_rate)).result()

    def effect(self, submit: Callable[[TrainingClient], Any]) -> Floats:
        """How a linear step after `submit` changes the log-probabilities, from a fresh client."""
        with self.fresh() as client:
            before = logprobs_of(client, self.data(client))
            submit(client)
            self.linear_step(client)
            return logprobs_of(client, self.data(client)) - before

    def assert_proportional(self, effect: Floats, other: Floats, factor: float) -> None:
        """`other` is `factor` times `effect`."""
        scale = float(np.abs(effect).max())
        assert scale > 0, "the step changed nothing; raise linear_rate"
        assert np.abs(other - factor * effect).max() <= self.linear_tolerance * factor * scale


def make_datum(prompt: Sequence[int], answer: Sequence[int]) -> Datum:
    """A datum that learns `answer` after `prompt`."""
    return Datum.supervised([*prompt, *answer], [0.0] * len(prompt) + [1.0] * len(answer))


def soften(datum: Datum) -> Datum:
    """A second target for each position, with its own weight."""
    targets = np.stack((datum.target_tokens, np.roll(datum.target_tokens, 1)), axis=1)
    return dataclasses.replace(
        datum, target_tokens=targets, weights=datum.weights[:, None] * np.array([0.7, 0.3], np.float32)
    )


def only_target(datum: Datum, column: int) -> Datum:
    """A soft datum with only one of its targets per position."""
    targets, weights = datum.target_tokens[:, column], datum.weights[:, column]
    return dataclasses.replace(datum, target_tokens=targets, weights=weights)


def mistaken(mistake: str, good: Sequence[Datum], vocab_size: int) -> tuple[list[Datum], str]:
    """Data and a loss that must be refused, for one kind of mistake."""
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
    """A name no checkpoint has yet."""
    return f"conformance-{secrets.token_hex(4)}"
