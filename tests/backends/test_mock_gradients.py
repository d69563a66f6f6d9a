"""The mock model's hand-written backward pass against finite differences in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from evsys_sdk.backends.mock import model
from evsys_sdk.backends.mock.packing import Ints
from evsys_sdk.backends.mock.tokenizer import ByteTokenizer
from evsys_sdk.backends.mock.weights import TABLE, Weights, base_weights

TOKENIZER = ByteTokenizer()
CHAT = [
    {"role": "system", "content": "Pick one:\nred\n\nor one of: red, blue, green."},
    {"role": "user", "content": "which colour, red or Blue?"},
    {"role": "assistant", "content": "red, red and blue"},
]
TEXTS = [TOKENIZER.apply_chat_template(CHAT), "a plain text, plain text: a plain", "日本語とабв abc abc"]


@pytest.fixture(scope="module")
def weights() -> Weights:
    start = base_weights("gradient", 0, hidden=8)
    noise = np.random.default_rng(0)
    return {name: value + 0.02 * noise.standard_normal(value.shape) for name, value in start.items()}


@pytest.fixture(scope="module")
def sequences() -> list[Ints]:
    return [np.array(TOKENIZER.encode(text), np.int64) for text in TEXTS]


def _problem(sequences: list[Ints], width: int) -> tuple[Ints, np.ndarray]:
    noise = np.random.default_rng(1)
    positions = sum(len(sequence) - 1 for sequence in sequences)
    targets = noise.integers(0, TOKENIZER.vocab_size, (positions, width))
    targets[:, 0] = np.concatenate([sequence[1:] for sequence in sequences])
    coefficients = noise.standard_normal(targets.shape)
    coefficients[noise.random(positions) < 0.4] = 0  # as prompts have
    return targets, coefficients


def _loss(weights: Weights, sequences: list[Ints], targets: Ints, coefficients: np.ndarray) -> float:
    run = model.forward(weights, [sequence[:-1] for sequence in sequences])
    return float((model.target_logprobs(weights, run, targets) * coefficients).sum())


def _numerical(
    weights: Weights, name: str, index: tuple[int, ...], problem: tuple[list[Ints], Ints, np.ndarray]
) -> float:
    step = 1e-6
    values: list[float] = []
    for sign in (1, -1):
        moved = {**weights, name: weights[name].copy()}
        moved[name][index] += sign * step
        values.append(_loss(moved, *problem))
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("width", [1, 3])
def test_every_parameter_has_the_gradient_of_finite_differences(
    weights: Weights, sequences: list[Ints], width: int
) -> None:
    targets, coefficients = _problem(sequences, width)
    run = model.forward(weights, [sequence[:-1] for sequence in sequences])
    gradient = model.backward(weights, run, targets, coefficients)
    chosen = np.random.default_rng(2)
    checked = 0
    for name, value in gradient.dense.items():
        flat = chosen.permutation(value.size)[:25]
        for index in (tuple(int(i) for i in np.unravel_index(place, value.shape)) for place in flat):
            expected = _numerical(weights, name, index, (sequences, targets, coefficients))
            assert value[index] == pytest.approx(expected, rel=1e-4, abs=1e-5), (name, index)
            checked += 1
    for place in chosen.permutation(len(gradient.rows))[:60]:
        index = (int(gradient.rows[place]), int(chosen.integers(8)))
        expected = _numerical(weights, TABLE, index, (sequences, targets, coefficients))
        assert gradient.row_values[place, index[1]] == pytest.approx(expected, rel=1e-4, abs=1e-5), index
        checked += 1
    assert checked > 150
    assert set(gradient.dense) | {TABLE} == set(weights)


def test_the_copy_head_is_exercised_by_every_kind_of_match(weights: Weights, sequences: list[Ints]) -> None:
    targets, coefficients = _problem(sequences, 1)
    run = model.forward(weights, [sequence[:-1] for sequence in sequences])
    assert {0, 1, 2, 3, 4, 5, 6}.issubset(run.matches.kind.tolist())
    assert set(range(7, 13)) & set(run.matches.kind.tolist())
    gradient = model.backward(weights, run, targets, coefficients)
    kinds = np.unique(run.matches.among(np.flatnonzero(coefficients.any(axis=1)), len(targets)).kind)
    assert (gradient.dense["copy_strengths"][kinds] != 0).all()


def test_rows_that_no_feature_reaches_have_no_influence(weights: Weights, sequences: list[Ints]) -> None:
    targets, coefficients = _problem(sequences, 1)
    run = model.forward(weights, [sequence[:-1] for sequence in sequences])
    gradient = model.backward(weights, run, targets, np.ones_like(coefficients))
    moved = {**weights, TABLE: weights[TABLE] + 5.0}
    moved[TABLE][gradient.rows] = weights[TABLE][gradient.rows]
    problem = (sequences, targets, coefficients)
    assert _loss(moved, *problem) == _loss(weights, *problem)


def test_without_any_weight_there_is_no_gradient(weights: Weights, sequences: list[Ints]) -> None:
    targets, coefficients = _problem(sequences, 1)
    run = model.forward(weights, [sequence[:-1] for sequence in sequences])
    gradient = model.backward(weights, run, targets, 0 * coefficients)
    assert not len(gradient.rows)
    assert all(not value.any() for value in gradient.dense.values())


@pytest.mark.parametrize("text", TEXTS)
def test_no_position_sees_what_comes_after_it(weights: Weights, text: str) -> None:
    tokens = np.array(TOKENIZER.encode(text), np.int64)
    whole = model.forward(weights, [tokens]).logits(weights)
    for cut in range(1, len(tokens), 7):
        part = model.forward(weights, [tokens[:cut]]).logits(weights)
        np.testing.assert_array_equal(part, whole[:cut])


def test_a_sequence_gets_the_same_bits_alone_and_in_company(sequences: list[Ints]) -> None:
    single = base_weights("company", 0, hidden=64)
    together = model.forward(single, sequences).logits(single)
    begin = 0
    for sequence in sequences:
        alone = model.forward(single, [sequence]).logits(single)
        np.testing.assert_array_equal(together[begin : begin + len(sequence)], alone)
        begin += len(sequence)
    last = model.forward(single, sequences, last_only=True).logits(single)
    ends = np.cumsum([len(sequence) for sequence in sequences]) - 1
    np.testing.assert_array_equal(last, together[ends])


def test_one_token_and_repetitive_text_are_no_special_cases() -> None:
    single = base_weights("edge", 0, hidden=16)
    for tokens in ([10], [258], [97] * 600, [257] * 5):
        logits = model.forward(single, [np.array(tokens, np.int64)]).logits(single)
        assert logits.shape == (len(tokens), TOKENIZER.vocab_size)
        assert np.isfinite(logits).all()
