"""The divergences, against what they should be: by finite differences and by their direction."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from evsys_sdk.algorithms.distillation import (
    TeacherScores,
    bucket_loss,
    check_divergence,
    distillation_batch,
    policy_gradient_datum,
    score_with_teacher,
    soft_datum,
)
from evsys_sdk.backends.client import TopLogprobs, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.future import Operation
from evsys_sdk.backends.losses import find_loss
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.rollouts.rollout import Turn
from evsys_sdk.training.frozen_model import FrozenModel

PROMPT = [7, 8, 9]
VOCABULARY = 6


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def scored(
    teacher_logits: np.ndarray, answer: Sequence[int], student_logprobs: Sequence[float] | None = None
) -> TeacherScores:
    """Scores in which the teacher reports its whole vocabulary."""
    logprobs = log_softmax(teacher_logits)
    order = np.argsort(-logprobs, axis=1)
    top = TopLogprobs(order, np.take_along_axis(logprobs, order, axis=1).astype(np.float32))
    own = list(student_logprobs or [-1.0] * len(answer))
    turn = Turn({"role": "assistant", "content": ""}, PROMPT, list(answer), own)
    return TeacherScores(turn, logprobs[np.arange(len(answer)), list(answer)], top)


def loss_of(logits: np.ndarray, datum: Datum, loss: Any) -> tuple[float, np.ndarray]:
    """The loss of a student with these logits over the answer, and its gradient on them, by the chain rule."""
    answer = slice(len(PROMPT) - 1, None)
    logprobs = log_softmax(logits)
    targets = datum.target_tokens[answer]
    logprobs_of_targets = np.zeros(datum.weights.shape, np.float64)
    logprobs_of_targets[answer] = np.take_along_axis(logprobs, targets, axis=1)
    value, _, [by_logprob] = loss([datum], [logprobs_of_targets])
    dense = np.zeros_like(logits)
    np.put_along_axis(dense, targets, by_logprob[answer], axis=1)
    return value, dense - np.exp(logprobs) * dense.sum(axis=1, keepdims=True)


def numeric_gradient(function: Callable[[np.ndarray], float], at: np.ndarray, eps: float = 1e-4) -> np.ndarray:
    gradient = np.zeros_like(at)
    for index in np.ndindex(*at.shape):
        step = np.zeros_like(at)
        step[index] = eps
        gradient[index] = (function(at + step) - function(at - step)) / (2 * eps)
    return gradient


def kl(a: np.ndarray, b: np.ndarray) -> float:
    """KL(a || b), summed over positions."""
    return float((np.exp(a) * (a - b)).sum())


@pytest.fixture
def logits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(4, VOCABULARY)) * 2, rng.normal(size=(4, VOCABULARY)) * 2


def test_the_soft_targets_have_the_gradient_of_kl_from_teacher_to_student(
    logits: tuple[np.ndarray, np.ndarray],
) -> None:
    student, teacher = logits
    datum = soft_datum(scored(teacher, [1, 2, 3, 4]), skip=0, scale=1.0)
    _, gradient = loss_of(student, datum, find_loss("cross_entropy"))
    forward = numeric_gradient(lambda x: kl(log_softmax(teacher), log_softmax(x)), student)
    backward = numeric_gradient(lambda x: kl(log_softmax(x), log_softmax(teacher)), student)
    np.testing.assert_allclose(gradient, forward, atol=1e-5)
    assert np.abs(gradient - backward).max() > 0.1, "the other direction is another gradient"


DIVERGENCES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "reverse": lambda student, teacher: kl(student, teacher),
    "jsd": lambda student, teacher: (
        0.5 * kl(teacher, np.logaddexp(student, teacher) - np.log(2))
        + 0.5 * kl(student, np.logaddexp(student, teacher) - np.log(2))
    ),
}


@pytest.mark.parametrize("kind", ["reverse", "jsd"])
def test_value_and_gradient_of_the_other_divergences(
    kind: Literal["reverse", "jsd"], logits: tuple[np.ndarray, np.ndarray]
) -> None:
    student, teacher = logits
    datum = soft_datum(scored(teacher, [1, 2, 3, 4]), skip=0, scale=0.25, renormalise=False)

    def expected(x: np.ndarray) -> float:
        return 0.25 * DIVERGENCES[kind](log_softmax(x), log_softmax(teacher))

    value, gradient = loss_of(student, datum, bucket_loss(kind, 0.25))
    assert value == pytest.approx(expected(student), abs=1e-5)
    np.testing.assert_allclose(gradient, numeric_gradient(expected, student), atol=1e-5)


@pytest.mark.parametrize("kind", ["reverse", "jsd"])
def test_what_lies_outside_the_teachers_top_tokens_counts_as_one_more_token(
    kind: Literal["reverse", "jsd"], logits: tuple[np.ndarray, np.ndarray]
) -> None:
    student, teacher = logits
    item = scored(teacher, [1, 2, 3, 4])
    assert item.teacher is not None
    top = TopLogprobs(item.teacher.tokens[:, :3], item.teacher.logprobs[:, :3])
    datum = soft_datum(replace(item, teacher=top), skip=0, scale=0.25, renormalise=False)

    def bucketed(x: np.ndarray) -> np.ndarray:
        inside = np.take_along_axis(log_softmax(x), top.tokens, axis=1)
        return np.concatenate([inside, np.log(1 - np.exp(inside).sum(axis=1, keepdims=True))], axis=1)

    def expected(x: np.ndarray) -> float:
        return 0.25 * DIVERGENCES[kind](bucketed(x), bucketed(teacher))

    value, gradient = loss_of(student, datum, bucket_loss(kind, 0.25))
    assert value == pytest.approx(expected(student), abs=1e-5)
    np.testing.assert_allclose(gradient, numeric_gradient(expected, student), atol=1e-5)


@pytest.mark.parametrize("kind", ["reverse", "jsd"])
def test_a_student_that_agrees_with_its_teacher_is_left_alone(kind: Literal["reverse", "jsd"]) -> None:
    teacher = np.random.default_rng(0).normal(size=(2, VOCABULARY))
    datum = soft_datum(scored(teacher, [0, 1]), skip=0, scale=1.0, renormalise=False)
    value, gradient = loss_of(teacher, datum, bucket_loss(kind, 1.0))
    assert value == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["reverse", "jsd"])
def test_divergences_stay_finite_where_the_teacher_is_certain(kind: Literal["reverse", "jsd"]) -> None:
    teacher = np.full((1, VOCABULARY), -200.0)
    teacher[0, 2] = 200.0
    student = np.zeros((1, VOCABULARY))
    student[0, 1] = 60.0
    datum = soft_datum(scored(teacher, [1]), skip=0, scale=1.0, renormalise=False)
    value, gradient = loss_of(student, datum, bucket_loss(kind, 1.0))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert gradient[0, 2] <= 0 <= gradient[0, 1]


def test_the_sampled_estimate_is_on_average_the_gradient_of_reverse_kl() -> None:
    rng = np.random.default_rng(1)
    student, teacher = rng.normal(size=(1, VOCABULARY)), rng.normal(size=(1, VOCABULARY))
    own = log_softmax(student)
    mean = np.zeros_like(student)
    for token in range(VOCABULARY):  # the expectation over what the student may sample, exactly
        datum = policy_gradient_datum(scored(teacher, [token], [float(own[0, token])]), skip=0, scale=1.0)
        logprobs = np.zeros(len(datum), np.float32)
        logprobs[-1] = own[0, token]
        _, _, [by_logprob] = find_loss("importance_sampling")([datum], [logprobs])
        one_hot = np.eye(VOCABULARY)[token]
        mean += np.exp(own[0, token]) * by_logprob[-1] * (one_hot - np.exp(own))
    expected = numeric_gradient(lambda x: kl(log_softmax(x), log_softmax(teacher)), student)
    np.testing.assert_allclose(mean, expected, atol=1e-4)


@pytest.mark.parametrize("skip", [0, 2])
def test_only_the_answer_after_the_skipped_tokens_carries_loss(skip: int, logits: tuple[Any, Any]) -> None:
    item = scored(logits[1], [1, 2, 3, 4])
    soft, sampled = soft_datum(item, skip=skip, scale=1.0), policy_gradient_datum(item, skip=skip, scale=1.0)
    carries = [False] * (len(PROMPT) - 1 + skip) + [True] * (4 - skip)
    assert (soft.weights.sum(axis=1) > 0).tolist() == carries
    assert (sampled.advantages != 0).tolist() == carries
    np.testing.assert_allclose(soft.weights.sum(axis=1)[carries], 1, rtol=1e-6)


@pytest.mark.parametrize("kind", ["forward", "sampled"])
def test_a_batch_is_a_mean_over_the_tokens_that_carry_loss(kind: Any, logits: tuple[Any, Any]) -> None:
    items = [scored(logits[1], [1, 2, 3, 4]), scored(logits[1][:1], [5]), scored(logits[1][:3], [1, 2, 3])]
    batch = distillation_batch(items, kind, skip=1)
    assert len(batch.data) == 2, "an answer that is skipped altogether teaches nothing"
    if kind == "forward":
        assert sum(datum.weights.sum() for datum in batch.data) == pytest.approx(1)
    else:
        liking = np.concatenate([items[0].teacher_logprobs[1:], items[2].teacher_logprobs[1:]]) - -1.0
        advantages = np.concatenate([datum.advantages[datum.advantages != 0] for datum in batch.data])
        np.testing.assert_allclose(advantages * 5, liking - liking.mean(), atol=1e-4)


def test_nothing_to_learn_from_is_an_empty_batch(logits: tuple[Any, Any]) -> None:
    assert not distillation_batch([], "forward").data
    assert not distillation_batch([scored(logits[1], [1, 2, 3, 4])], "forward", skip=4).data


class ReportingTeacher:
    """Gives each token the log-probability -position, and the K alternatives 0..K-1."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def logprobs(self, tokens: Sequence[int]) -> Operation[Any]:
        self.asked.append(len(tokens))
        return Operation.done(-np.arange(len(tokens), dtype=np.float32))

    def topk_logprobs(self, tokens: Sequence[int], k: int, *changes: Any) -> Operation[TopLogprobs]:
        self.asked.append(len(tokens))
        rows = np.tile(np.arange(k), (len(tokens), 1))
        return Operation.done(TopLogprobs(rows, -rows.astype(np.float32) - 1))


async def ask(
    prompts: Sequence[Sequence[int]], answers: Sequence[list[int]], *, top_k: int, context_length: int
) -> list[TeacherScores]:
    turns = [Turn({}, [1], answer, [-0.5] * len(answer)) for answer in answers]
    able: Any = SimpleNamespace(context_length=context_length)
    sampler: Any = ReportingTeacher()
    teacher = FrozenModel(Operation.done(sampler), DataError("tokens only"), None, able)
    return await score_with_teacher(teacher, prompts, turns, top_k=top_k)


async def test_the_teacher_speaks_of_the_answer_after_its_own_prompt() -> None:
    [first, second] = await ask([[1] * 5, [1] * 2], [[3, 3], [3]], top_k=0, context_length=100)
    assert first.teacher_logprobs.tolist() == [-5, -6]
    assert second.teacher_logprobs.tolist() == [-2]


async def test_a_sampled_token_outside_the_top_is_at_most_as_probable_as_the_last_of_them() -> None:
    [scores] = await ask([[1, 1]], [[0, 2, 9]], top_k=3, context_length=100)
    assert scores.teacher_logprobs.tolist() == [-1, -3, -3]


@pytest.mark.parametrize("top_k", [0, 3])
async def test_an_answer_is_cut_to_the_room_next_to_the_teachers_prompt_and_left_out_without_any(top_k: int) -> None:
    lessons = await ask([[1] * 6, [1] * 10, [1] * 12, [1]], [[2, 3, 4, 5, 6]] * 4, top_k=top_k, context_length=10)
    assert [item.turn.completion_tokens for item in lessons] == [[2, 3, 4, 5], [2, 3, 4, 5, 6]]
    for item in lessons:
        assert len(item.turn.logprobs) == len(item.teacher_logprobs) == len(item.turn.completion_tokens)
    assert distillation_batch(lessons, "forward" if top_k else "sampled").data


def test_what_the_backend_cannot_compute_is_refused_with_a_remedy(make_client: Callable[..., TrainingClient]) -> None:
    able = make_client().capabilities
    check_divergence("forward", able.top_k_logprobs, able)
    with pytest.raises(ConfigError, match=r"algorithm.params.top_k.*at most 5.*got 20.*Set it to 5 or less"):
        check_divergence("forward", 20, replace(able, top_k_logprobs=5))
    with pytest.raises(ConfigError, match="divergence: sampled"):
        check_divergence("reverse", 20, replace(able, top_k_logprobs=0))
    with pytest.raises(ConfigError, match="soft targets"):
        check_divergence("forward", 20, replace(able, soft_targets=False))
    with pytest.raises(ConfigError, match="forward or sampled"):
        check_divergence("jsd", 20, replace(able, custom_loss=False))
    check_divergence("sampled", 20, replace(able, top_k_logprobs=0, soft_targets=False, custom_loss=False))
