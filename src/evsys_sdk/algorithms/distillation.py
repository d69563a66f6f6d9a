"""Learning from a teacher's distribution over the student's own words: what `sdft` and `opd` share.

The student samples, the teacher says how probable it finds its favourite alternatives at each position, and the
student's distribution over them is pulled towards the teacher's:

    forward   KL(teacher || student), a cross-entropy with soft targets
    reverse   KL(student || teacher)
    jsd       half of each against their mixture
    sampled   reverse KL estimated from the sampled token alone, a policy gradient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..backends.client import SamplingClient, TopLogprobs
from ..backends.datum import Datum
from ..backends.future import Operation
from ..backends.losses import LossCallable, numpy_loss
from ..rollouts.rollout import Turn
from ..training.batch import TrainingBatch

type Divergence = Literal["forward", "reverse", "jsd", "sampled"]


@dataclass(frozen=True, slots=True)
class Lesson:
    """One answer of the student, and what the teacher thinks at each of its positions."""

    turn: Turn
    teacher: TopLogprobs
    """(T, K), the teacher's most probable tokens for each sampled position."""
    teacher_logprobs: np.ndarray
    """(T,), of the tokens the student sampled."""


def ask_teacher(
    teacher: SamplingClient, prompt: Sequence[int], turn: Turn, k: int
) -> tuple[Operation[TopLogprobs], Operation[np.ndarray]]:
    """Start scoring the student's answer after the teacher's own prompt."""
    tokens = [*prompt, *turn.completion_tokens]
    return teacher.topk_logprobs(tokens, k), teacher.logprobs(tokens)


async def lesson(
    turn: Turn, prompt_length: int, top: Operation[TopLogprobs], logprobs: Operation[np.ndarray]
) -> Lesson:
    """What the teacher said, cut to the student's answer."""
    found, scores = await top, await logprobs
    return Lesson(
        turn, TopLogprobs(found.tokens[prompt_length:], found.logprobs[prompt_length:]), scores[prompt_length:]
    )


def distillation_batch(items: Sequence[Lesson], kind: Divergence, *, skip: int = 0) -> TrainingBatch:
    """The step that pulls the student towards the teacher, averaged over the tokens of all answers."""
    scale = 1 / sum(len(item.turn.completion_tokens) for item in items)
    if kind == "sampled":
        data = [sampled_datum(item, skip=skip, scale=scale) for item in items]
        return TrainingBatch(data, "importance_sampling", metrics=distance(items))
    data = [soft_datum(item, skip=skip, scale=scale) for item in items]
    # With q the teacher and p the student, the gradient of this cross-entropy on the logits is p - q: forward KL.
    loss = "cross_entropy" if kind == "forward" else support_loss(kind)
    return TrainingBatch(data, loss, metrics=distance(items))


def soft_datum(item: Lesson, *, skip: int, scale: float) -> Datum:
    """Soft targets: the teacher's top tokens, renormalised, at each position of the student's answer."""
    turn = item.turn
    full = np.asarray([*turn.prompt_tokens, *turn.completion_tokens], dtype=np.int64)
    n, k = len(full) - 1, item.teacher.tokens.shape[1]
    probabilities = np.exp(item.teacher.logprobs - item.teacher.logprobs.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    targets = np.repeat(full[1:, None], k, axis=1)
    weights = np.zeros((n, k), dtype=np.float32)
    answer = slice(len(turn.prompt_tokens) - 1, None)
    targets[answer] = item.teacher.tokens
    weights[answer] = probabilities * scale
    weights[len(turn.prompt_tokens) - 1 : len(turn.prompt_tokens) - 1 + skip] = 0.0
    return Datum(full[:-1], targets, weights)


def sampled_datum(item: Lesson, *, skip: int, scale: float) -> Datum:
    """A policy gradient whose advantage at each token is how much more the teacher likes it than the student did."""
    turn = item.turn
    advantages = (item.teacher_logprobs - np.asarray(turn.logprobs)) * scale
    advantages[:skip] = 0.0
    return Datum.policy(turn.prompt_tokens, turn.completion_tokens, turn.logprobs, advantages.tolist())


def support_loss(kind: Literal["reverse", "jsd"]) -> LossCallable:
    """A divergence between student and teacher, both renormalised over the teacher's top tokens.

    The teacher's probabilities are the soft targets' weights. With g the derivative by the student's probabilities p,
    the derivative by its log-probabilities is p * (g - sum(p * g)), because of the renormalisation.
    """
    mix = 0.5

    @numpy_loss
    def loss(
        data: Sequence[Datum], logprobs: Sequence[np.ndarray]
    ) -> tuple[float, Mapping[str, float], list[np.ndarray]]:
        total, gradients = 0.0, list[np.ndarray]()
        for datum, lp in zip(data, logprobs, strict=True):
            size = datum.weights.sum(axis=1, keepdims=True).astype(np.float64)
            q = np.where(size > 0, datum.weights / np.where(size > 0, size, 1), 1 / datum.weights.shape[1]) + 1e-12
            p = np.exp(lp - lp.max(axis=1, keepdims=True), dtype=np.float64)
            p = p / p.sum(axis=1, keepdims=True) + 1e-12
            if kind == "reverse":
                value, slope = (p * np.log(p / q)).sum(axis=1), np.log(p / q)
            else:
                m = mix * q + (1 - mix) * p
                value = (mix * q * np.log(q / m) + (1 - mix) * p * np.log(p / m)).sum(axis=1)
                slope = (1 - mix) * np.log(p / m)
            total += float((size[:, 0] * value).sum())
            gradient = size * p * (slope - (p * slope).sum(axis=1, keepdims=True))
            gradients.append(gradient.astype(np.float32))
        return total, {}, gradients

    return loss


def distance(items: Sequence[Lesson]) -> dict[str, float]:
    """How far the student's own words are from what the teacher would have said."""
    gaps = np.concatenate([np.asarray(item.turn.logprobs) - item.teacher_logprobs for item in items])
    top = np.concatenate([item.teacher.logprobs for item in items])
    return {
        "teacher/reverse_kl": float(gaps.mean()),
        "teacher/entropy_top": float(-(np.exp(top) * top).sum(axis=1).mean()),
    }
