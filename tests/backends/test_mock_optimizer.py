"""The sparse Adam of the mock backend against Adam as the textbook has it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evsys_sdk.backends.client import AdamParams
from evsys_sdk.backends.mock.model import Gradient
from evsys_sdk.backends.mock.state import Adam, GradientSum
from evsys_sdk.backends.mock.weights import TABLE, Weights


def _weights() -> Weights:
    noise = np.random.default_rng(0)
    return {TABLE: noise.standard_normal((6, 3)), "bias": noise.standard_normal(4)}


def _gradients(steps: int) -> list[Gradient]:
    noise = np.random.default_rng(1)
    rows = [np.array(chosen) for chosen in ([0, 2], [2], [4], [0, 1, 2], [5])]
    return [
        Gradient({"bias": noise.standard_normal(4)}, rows[step % 5], noise.standard_normal((len(rows[step % 5]), 3)))
        for step in range(steps)
    ]


def _textbook(weights: Weights, base: Weights, gradients: list[Gradient], adam: AdamParams) -> Weights:
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    for step, gradient in enumerate(gradients, start=1):
        table = np.zeros_like(weights[TABLE])
        table[gradient.rows] = gradient.row_values
        dense = {**gradient.dense, TABLE: table}
        norm = np.sqrt(sum(float((value**2).sum()) for value in dense.values()))
        factor = min(1.0, adam.grad_clip_norm / norm) if adam.grad_clip_norm else 1.0
        updated: Weights = {}
        for name, value in weights.items():
            first[name] = adam.beta1 * first[name] + (1 - adam.beta1) * factor * dense[name]
            second[name] = adam.beta2 * second[name] + (1 - adam.beta2) * (factor * dense[name]) ** 2
            move = (first[name] / (1 - adam.beta1**step)) / (np.sqrt(second[name] / (1 - adam.beta2**step)) + adam.eps)
            updated[name] = value - adam.learning_rate * (move + adam.weight_decay * (value - base[name]))
        weights = updated
    return weights


@pytest.mark.parametrize(
    "adam",
    [
        AdamParams(0.01),
        AdamParams(0.01, weight_decay=0.1),
        AdamParams(0.01, grad_clip_norm=0.5),
        AdamParams(0.5, beta1=0.0, beta2=0.0, eps=100.0),
    ],
)
def test_steps_are_those_of_the_textbook(adam: AdamParams) -> None:
    base = _weights()
    weights, optimizer, trained = dict(base), Adam(base), np.zeros(6, bool)
    total = GradientSum(base)
    for gradient in _gradients(12):
        total.add(gradient)
        trained |= total.touched
        weights, metrics = optimizer.step(weights, base, total, trained, adam)
        total.clear()
        assert metrics["grad_norm"] > 0
        assert metrics["grad_clipped"] == float(bool(adam.grad_clip_norm) and metrics["grad_norm"] > 0.5)
    for name, expected in _textbook(base, base, _gradients(12), adam).items():
        np.testing.assert_allclose(weights[name], expected, rtol=1e-9, atol=1e-12)


def test_old_arrays_are_left_as_they_are() -> None:
    base = _weights()
    before = {name: value.copy() for name, value in base.items()}
    total = GradientSum(base)
    total.add(_gradients(1)[0])
    Adam(base).step(base, base, total, total.touched, AdamParams(0.1))
    assert all(np.array_equal(base[name], before[name]) for name in base)


def test_weight_decay_draws_back_to_the_base_model() -> None:
    base = _weights()
    moved = {name: value + 1.0 for name, value in base.items()}
    decay = dataclasses.replace(AdamParams(0.1), weight_decay=0.5)
    updated, _ = Adam(base).step(moved, base, GradientSum(base), np.ones(6, bool), decay)
    np.testing.assert_allclose(updated[TABLE] - base[TABLE], 0.95)
