"""Distillation from a teacher's distribution over the student's own samples, shared by `sdft` and `opd`.

The student samples answers, the teacher gives its most probable tokens at each position, and the loss is a divergence
between the two distributions:

    forward   KL(teacher || student), a cross-entropy with soft targets
    reverse   KL(student || teacher)
    jsd       Jensen-Shannon divergence
    sampled   reverse KL estimated from the sampled token only, by policy gradient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from ..backends.checks import check_recipe
from ..backends.client import TopLogprobs
from ..backends.datum import Datum
from ..backends.losses import LossCallable, numpy_loss
from ..config.fields import searched
from ..errors import ConfigError, Problem
from ..rollouts.rollout import Message, Rollout, Turn
from ..training.batch import TrainingBatch
from ..training.frozen_model import SampledTurn
from .on_policy import OnPolicyAlgorithm, OnPolicyConfig, row_name

if TYPE_CHECKING:
    from ..backends.client import Capabilities, SamplingClient
    from ..training.frozen_model import FrozenModel

type Divergence = Literal["forward", "reverse", "jsd", "sampled"]


class DistillationConfig(OnPolicyConfig):
    """Hyperparameters of distillation recipes."""

    divergence: Divergence = "forward"
    """The divergence from the teacher to minimise; `sampled` uses only sampled tokens and is noisy."""
    top_k: int = Field(
        default=20, ge=1, json_schema_extra=searched(scale="log", when={"divergence": ["forward", "reverse", "jsd"]})
    )
    """Number of the teacher's most probable tokens per position used as soft targets."""


class DistillationAlgorithm(OnPolicyAlgorithm):
    """Base of distillation recipes: `setup` adds the questions and opens the teacher."""

    Config = DistillationConfig
    selection_metric: ClassVar[str] = "teacher/reverse_kl"
    teacher_is: ClassVar[str]
    """Description of the frozen weights, for error messages."""
    questions: list[list[Message]]
    """The student's prompt for each row."""

    async def setup(self) -> None:
        check_divergence(self.cfg.divergence, self.cfg.top_k, self.client.capabilities)
        check_recipe(self.client.capabilities, path="algorithm.kind", snapshots=self.teacher_is)

    async def teacher_at(self, step: int) -> SamplingClient:
        """The teacher for a step."""
        raise NotImplementedError

    def teacher_prompt(self, index: int, turn: Turn) -> Sequence[int]:
        """The teacher's prompt before the student's answer; by default the student's prompt."""
        return turn.prompt_tokens

    @property
    def skip_tokens(self) -> int:
        """Number of initial tokens of each answer without loss."""
        return 0

    def n_examples(self) -> int:
        return len(self.questions)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        indices = list(self.order().indices(step_idx))
        questions = [self.questions[index] for index in indices]
        answers = await self.answers(questions, step_idx)
        answered = [(index, turn) for index, turn in zip(indices, answers, strict=True) if turn is not None]
        teacher_scores = await score_with_teacher(
            self.frozen(await self.teacher_at(step_idx)),
            [self.teacher_prompt(index, turn) for index, turn in answered],
            [turn for _, turn in answered],
            top_k=0 if self.cfg.divergence == "sampled" else self.cfg.top_k,
        )
        batch = distillation_batch(teacher_scores, self.cfg.divergence, skip=self.skip_tokens)
        sampled = sum(len(turn.completion_tokens) for _, turn in answered)
        batch.metrics |= {
            "epoch": self.order().epoch(step_idx),
            "tokens_sampled": sampled,
            "answers/no_room": len(questions) - len(teacher_scores),
            "answers/cut_tokens": sampled - sum(scores.n_tokens for scores in teacher_scores),
        }
        names = [row_name(self.rows, index) for index in indices]
        batch.rollouts = answer_rollouts(questions, names, answers, teacher_scores, skip=self.skip_tokens)
        return batch


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """One answer of the student with the teacher's log-probabilities."""

    turn: Turn
    teacher_logprobs: np.ndarray
    """(T,), of the sampled tokens; an upper bound for tokens outside `teacher`."""
    teacher: TopLogprobs | None = None
    """(T, K), the teacher's most probable tokens per sampled position, if needed."""
    index: int = 0
    """Index of the answer."""

    @property
    def n_tokens(self) -> int:
        return len(self.turn.completion_tokens)

    @property
    def mean_log_ratio(self) -> float:
        """Mean log-ratio between teacher and student, in nats per token."""
        return float(_log_ratios(self).mean())


def check_divergence(kind: Divergence, top_k: int, capabilities: Capabilities) -> None:
    """Refuse a divergence that the backend cannot compute, before sampling."""
    backend, hint = capabilities.backend, "Set divergence: sampled, which needs only the sampled tokens."
    if kind != "forward":
        check_recipe(capabilities, path="algorithm.params.divergence", sums=f"the divergence '{kind}'")
    if kind == "sampled":
        return
    if top_k > capabilities.top_k_logprobs:
        most = capabilities.top_k_logprobs
        message = f"the backend '{backend}' reports at most {most} tokens per position"
        lower = f"Set it to {most} or less." if most else hint
        raise ConfigError(Problem(message, path="algorithm.params.top_k", value=top_k, hint=lower))
    missing = "soft targets" if not capabilities.soft_targets else None
    if kind != "forward" and not capabilities.custom_loss:
        missing, hint = "custom losses", "Set divergence: forward or sampled."
    if missing:
        message = f"the backend '{backend}' has no {missing}, which this divergence needs"
        raise ConfigError(Problem(message, path="algorithm.params.divergence", value=kind, hint=hint))


async def score_with_teacher(
    teacher: FrozenModel, prompts: Sequence[Sequence[int]], turns: Sequence[Turn], *, top_k: int
) -> list[TeacherScores]:
    """The teacher's log-probabilities of the student's answers, each after its own prompt.

    An answer is cut to the teacher's context length, and skipped if the prompt alone fills it. `top_k` of 0 scores only
    the sampled tokens.
    """
    longest = teacher.capabilities.context_length
    cut = [(prompt, _cut(turn, longest - len(prompt))) for prompt, turn in zip(prompts, turns, strict=True)]
    scored = [(index, len(prompt), turn) for index, (prompt, turn) in enumerate(cut) if turn.completion_tokens]
    data = [
        SampledTurn({}, list(prompt), turn.completion_tokens).datum() for prompt, turn in cut if turn.completion_tokens
    ]
    if not top_k:
        rows = await teacher.logprobs_async(data)
        return [TeacherScores(turn, logprobs, index=at) for (at, _, turn), logprobs in zip(scored, rows, strict=True)]
    # Row i predicts the token at position i + 1.
    tops = [
        TopLogprobs(top.tokens[start - 1 :], top.logprobs[start - 1 :])
        for (_, start, _), top in zip(scored, await teacher.topk_logprobs_async(data, top_k), strict=True)
    ]
    return [
        TeacherScores(turn, _look_up(turn.completion_tokens, top), top, at)
        for (at, _, turn), top in zip(scored, tops, strict=True)
    ]


def _look_up(tokens: Sequence[int], top: TopLogprobs) -> np.ndarray:
    """Log-probabilities of tokens: exact if among the top ones, else that of the last top token, an upper bound."""
    # (T, K): whether the sampled token is that top token.
    at = top.tokens == np.asarray(tokens)[:, None]
    return np.where(at.any(axis=1), np.where(at, top.logprobs, -np.inf).max(axis=1), top.logprobs[:, -1])


def _cut(turn: Turn, length: int) -> Turn:
    length_kept = max(length, 0)
    return replace(turn, completion_tokens=turn.completion_tokens[:length_kept], logprobs=turn.logprobs[:length_kept])


def distillation_batch(items: Sequence[TeacherScores], kind: Divergence, *, skip: int = 0) -> TrainingBatch:
    """The batch that moves the student towards the teacher, averaged over the tokens of all answers."""
    items = [item for item in items if item.n_tokens > skip]
    if not items:
        return TrainingBatch([], empty_because="The teacher scored no answer; see `evsys rollouts`.")
    scale = 1 / sum(item.n_tokens - skip for item in items)
    if kind == "sampled":
        # The mean log-ratio is usually negative. Subtracting it as a baseline keeps the expected gradient, but prevents
        # a step from making every sampled token less probable.
        baseline = float(np.concatenate([_log_ratios(item)[skip:] for item in items]).mean())
        data = [policy_gradient_datum(item, skip=skip, scale=scale, baseline=baseline) for item in items]
        return TrainingBatch(data, "importance_sampling", metrics=distance(items))
    data = [soft_datum(item, skip=skip, scale=scale, renormalise=kind == "forward") for item in items]
    # With q the teacher and p the student, the gradient of this cross-entropy on the logits is p - q: forward KL.
    loss = "cross_entropy" if kind == "forward" else bucket_loss(kind, scale)
    return TrainingBatch(data, loss, metrics=distance(items))


def soft_datum(item: TeacherScores, *, skip: int, scale: float, renormalise: bool = True) -> Datum:
    """Soft targets: the probabilities of the teacher's top tokens at each position of the answer."""
    assert item.teacher is not None
    turn, teacher = item.turn, item.teacher
    before = len(turn.prompt_tokens)
    weights = [0.0] * (before + skip) + [scale] * (item.n_tokens - skip)
    datum = Datum.supervised([*turn.prompt_tokens, *turn.completion_tokens], weights)
    # Position i predicts token i + 1, and prompt positions have no targets.
    padding = ((before - 1, 0), (0, 0))
    # Without a bucket for other tokens, the top tokens must be renormalised to a full distribution.
    return datum.soften(np.pad(teacher.tokens, padding), np.pad(teacher.logprobs, padding), renormalise=renormalise)


def policy_gradient_datum(item: TeacherScores, *, skip: int, scale: float, baseline: float = 0.0) -> Datum:
    """A policy gradient whose advantage per token is the log-ratio between teacher and student."""
    turn = item.turn
    advantages = (_log_ratios(item) - baseline) * scale
    advantages[:skip] = 0.0
    return Datum.policy(turn.prompt_tokens, turn.completion_tokens, turn.logprobs, advantages.tolist())


def _log_ratios(item: TeacherScores) -> np.ndarray:
    return item.teacher_logprobs - np.asarray(item.turn.logprobs)


def bucket_loss(kind: Literal["reverse", "jsd"], scale: float) -> LossCallable:
    """A divergence between student and teacher over the teacher's top tokens and one bucket for all others.

    The bucket penalises probability outside the teacher's top tokens. The soft targets' weights are `scale` times the
    teacher's probabilities q. With the student's p, the derivative g by p, and the bucket's p = 1 - sum(p), the
    derivative by a token's log-probability is p * (g - g of the bucket).
    """
    mix = 0.5

    @numpy_loss
    def loss(
        data: Sequence[Datum], logprobs: Sequence[np.ndarray]
    ) -> tuple[float, Mapping[str, float], list[np.ndarray]]:
        total, gradients = 0.0, list[np.ndarray]()
        for datum, lp in zip(data, logprobs, strict=True):
            # Prompt and skipped positions have zero weight.
            counts = datum.weights.sum(axis=1, keepdims=True) > 0
            q, p = _with_bucket(datum.weights / scale), _with_bucket(np.exp(lp, dtype=np.float64))
            if kind == "reverse":
                value, slope = (p * np.log(p / q)).sum(axis=1), np.log(p / q)
            else:
                m = mix * q + (1 - mix) * p
                value = (mix * q * np.log(q / m) + (1 - mix) * p * np.log(p / m)).sum(axis=1)
                slope = (1 - mix) * np.log(p / m)
            total += scale * float(value[counts[:, 0]].sum())
            gradient = scale * counts * p[:, :-1] * (slope[:, :-1] - slope[:, -1:])
            gradients.append(gradient.astype(np.float32))
        return total, {}, gradients

    return loss


def _with_bucket(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities of some tokens and of all others together, clipped above 0 for logarithms."""
    # In float64: float32 loses the remainder if the top tokens have nearly all probability.
    remainder = 1 - probabilities.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.maximum(np.concatenate([probabilities, remainder], axis=1), 1e-9)


def distance(items: Sequence[TeacherScores]) -> dict[str, float]:
    """Divergence between student and teacher over all sampled tokens."""
    metrics = {
        "teacher/reverse_kl": reverse_kl([item.mean_log_ratio for item in items], [item.n_tokens for item in items])
    }
    tops = [item.teacher.logprobs for item in items if item.teacher is not None]
    if tops:
        top = np.concatenate(tops)
        metrics["teacher/entropy_top"] = float(-(np.exp(top) * top).sum(axis=1).mean())
    return metrics


def reverse_kl(mean_log_ratios: Sequence[float], n_tokens: Sequence[int]) -> float:
    """Token-weighted mean reverse KL over several answers."""
    return -sum(ratio * n for ratio, n in zip(mean_log_ratios, n_tokens, strict=True)) / sum(n_tokens)


def answer_rollouts(
    questions: Sequence[Sequence[Message]],
    names: Sequence[str],
    answers: Sequence[Turn | None],
    teacher_scores: Sequence[TeacherScores],
    *,
    skip: int = 0,
) -> list[Rollout]:
    """The answers of a step as rollouts, with the mean log-ratio as reward.

    `teacher_scores` refer to the existing answers by index.
    """
    by_answer = {scores.index: scores for scores in teacher_scores if scores.n_tokens > skip}
    rollouts: list[Rollout] = []
    n_answers = 0
    for name, question, turn in zip(names, questions, answers, strict=True):
        messages = [dict(message) for message in question]
        if turn is None:
            rollouts.append(Rollout(name, 0, "infra", None, [], messages, "the question fills the context"))
            continue
        scores, n_answers = by_answer.get(n_answers), n_answers + 1
        info = {"teacher/reverse_kl": -scores.mean_log_ratio, "teacher_tokens": scores.n_tokens} if scores else {}
        problem = "the answer was cut off at max_tokens" if turn.stop_reason == "length" else None
        rollouts.append(
            Rollout(
                name,
                0,
                status="truncated" if problem else "ok",
                reward=None if scores is None else scores.mean_log_ratio,
                turns=[turn],
                messages=[*messages, turn.message],
                error=problem
                if scores is not None
                else "the answer does not fit the teacher's context, or is shorter than skip_tokens",
                info=info,
            )
        )
    return rollouts
