"""Learning from a teacher's distribution over the student's own words: what `sdft` and `opd` share.

The student samples, the teacher says how probable it finds its favourite alternatives at each position, and the
student's distribution is pulled towards the teacher's:

    forward   KL(teacher || student), a cross-entropy with soft targets
    reverse   KL(student || teacher)
    jsd       half of each against their mixture
    sampled   reverse KL estimated from the sampled token alone, a policy gradient
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
    """Hyperparameters of recipes that learn from a teacher's distribution."""

    divergence: Divergence = "forward"
    """Which divergence from the teacher is lowered; `sampled` looks at sampled tokens only and is noisy."""
    top_k: int = Field(
        default=20, ge=1, json_schema_extra=searched(scale="log", when={"divergence": ["forward", "reverse", "jsd"]})
    )
    """How many of the teacher's alternatives per position become soft targets."""


class DistillationAlgorithm(OnPolicyAlgorithm):
    """Base of recipes that learn from a teacher's distribution: `setup` adds the questions and finds the teacher."""

    Config = DistillationConfig
    selection_metric: ClassVar[str] = "teacher/reverse_kl"
    teacher_is: ClassVar[str]
    """Whose weights must not move while the student is trained."""
    questions: list[list[Message]]
    """What the student is asked for each row."""

    async def setup(self) -> None:
        check_divergence(self.cfg.divergence, self.cfg.top_k, self.client.capabilities)
        check_recipe(self.client.capabilities, path="algorithm.kind", snapshots=self.teacher_is)

    async def teacher_at(self, step: int) -> SamplingClient:
        """The teacher of a step."""
        raise NotImplementedError

    def teacher_prompt(self, index: int, turn: Turn) -> Sequence[int]:
        """What the teacher reads in front of the student's answer to a row: by default what the student was asked."""
        return turn.prompt_tokens

    @property
    def skip_tokens(self) -> int:
        """First tokens of each answer that carry no loss."""
        return 0

    def n_examples(self) -> int:
        return len(self.questions)

    async def build_batch(self, step_idx: int) -> TrainingBatch:
        indices = list(self.order().indices(step_idx))
        questions = [self.questions[index] for index in indices]
        answers = await self.answers(questions, step_idx)
        answered = [(index, turn) for index, turn in zip(indices, answers, strict=True) if turn is not None]
        lessons = await ask_teacher(
            self.frozen(await self.teacher_at(step_idx)),
            [self.teacher_prompt(index, turn) for index, turn in answered],
            [turn for _, turn in answered],
            top_k=0 if self.cfg.divergence == "sampled" else self.cfg.top_k,
        )
        batch = distillation_batch(lessons, self.cfg.divergence, skip=self.skip_tokens)
        sampled = sum(len(turn.completion_tokens) for _, turn in answered)
        batch.metrics |= {
            "epoch": self.order().epoch(step_idx),
            "tokens_sampled": sampled,
            "answers/no_room": len(questions) - len(lessons),
            "answers/cut_tokens": sampled - sum(lesson.n_tokens for lesson in lessons),
        }
        names = [row_name(self.rows, index) for index in indices]
        batch.rollouts = answer_rollouts(questions, names, answers, lessons, skip=self.skip_tokens)
        return batch


@dataclass(frozen=True, slots=True)
class Lesson:
    """One answer of the student, and what the teacher thinks at each of its positions."""

    turn: Turn
    teacher_logprobs: np.ndarray
    """(T,), of the tokens the student sampled; for those outside `teacher`, at most this."""
    teacher: TopLogprobs | None = None
    """(T, K), the teacher's most probable tokens for each sampled position, where they are needed."""
    index: int = 0
    """Which of the answers that were asked about it is."""

    @property
    def n_tokens(self) -> int:
        return len(self.turn.completion_tokens)

    @property
    def liking(self) -> float:
        """How much more the teacher likes the answer than the student does, in nats per token."""
        return float(_log_ratios(self).mean())


def check_divergence(kind: Divergence, top_k: int, capabilities: Capabilities) -> None:
    """Refuse, before anything is sampled, what this backend cannot compute."""
    backend, hint = capabilities.backend, "Set divergence: sampled, which needs only the sampled tokens."
    if kind != "forward":
        check_recipe(capabilities, path="algorithm.params.divergence", sums=f"the divergence '{kind}'")
    if kind == "sampled":
        return
    if top_k > capabilities.top_k_logprobs:
        most = capabilities.top_k_logprobs
        message = f"the backend '{backend}' reports at most {most} alternatives per position"
        lower = f"Set it to {most} or less." if most else hint
        raise ConfigError(Problem(message, path="algorithm.params.top_k", value=top_k, hint=lower))
    missing = "soft targets" if not capabilities.soft_targets else None
    if kind != "forward" and not capabilities.custom_loss:
        missing, hint = "losses of our own", "Set divergence: forward or sampled."
    if missing:
        message = f"the backend '{backend}' takes no {missing}, which this divergence needs"
        raise ConfigError(Problem(message, path="algorithm.params.divergence", value=kind, hint=hint))


async def ask_teacher(
    teacher: FrozenModel, prompts: Sequence[Sequence[int]], turns: Sequence[Turn], *, top_k: int
) -> list[Lesson]:
    """What the teacher thinks of the student's answers, each after its own prompt.

    An answer is cut to what the teacher's context holds next to the prompt, and left out where that is nothing. With a
    `top_k` of 0 only the sampled tokens are looked up.
    """
    longest = teacher.capabilities.context_length
    cut = [(prompt, _cut(turn, longest - len(prompt))) for prompt, turn in zip(prompts, turns, strict=True)]
    asked = [(index, len(prompt), turn) for index, (prompt, turn) in enumerate(cut) if turn.completion_tokens]
    data = [
        SampledTurn({}, list(prompt), turn.completion_tokens).datum() for prompt, turn in cut if turn.completion_tokens
    ]
    if not top_k:
        found = await teacher.logprobs_async(data)
        return [Lesson(turn, logprobs, index=at) for (at, _, turn), logprobs in zip(asked, found, strict=True)]
    # Row i is about the token at place i + 1.
    tops = [
        TopLogprobs(top.tokens[start - 1 :], top.logprobs[start - 1 :])
        for (_, start, _), top in zip(asked, await teacher.topk_logprobs_async(data, top_k), strict=True)
    ]
    return [
        Lesson(turn, _look_up(turn.completion_tokens, top), top, at)
        for (at, _, turn), top in zip(asked, tops, strict=True)
    ]


def _look_up(tokens: Sequence[int], top: TopLogprobs) -> np.ndarray:
    """What the top tokens say about some others: their own log-probability, or that of the last one, which is more."""
    # (T, K): where the sampled token is among the top ones.
    at = top.tokens == np.asarray(tokens)[:, None]
    return np.where(at.any(axis=1), np.where(at, top.logprobs, -np.inf).max(axis=1), top.logprobs[:, -1])


def _cut(turn: Turn, length: int) -> Turn:
    kept = max(length, 0)
    return replace(turn, completion_tokens=turn.completion_tokens[:kept], logprobs=turn.logprobs[:kept])


def distillation_batch(items: Sequence[Lesson], kind: Divergence, *, skip: int = 0) -> TrainingBatch:
    """The step that pulls the student towards the teacher, averaged over the tokens of all answers."""
    items = [item for item in items if item.n_tokens > skip]
    if not items:
        return TrainingBatch([], empty_because="No answer left the teacher anything to say; see `evsys rollouts`.")
    scale = 1 / sum(item.n_tokens - skip for item in items)
    if kind == "sampled":
        # On average the teacher likes the student's words less than the student does. Taking that average off changes
        # nothing in expectation, but keeps a step from making everything that was sampled less probable.
        baseline = float(np.concatenate([_log_ratios(item)[skip:] for item in items]).mean())
        data = [policy_gradient_datum(item, skip=skip, scale=scale, baseline=baseline) for item in items]
        return TrainingBatch(data, "importance_sampling", metrics=distance(items))
    data = [soft_datum(item, skip=skip, scale=scale, renormalise=kind == "forward") for item in items]
    # With q the teacher and p the student, the gradient of this cross-entropy on the logits is p - q: forward KL.
    loss = "cross_entropy" if kind == "forward" else bucket_loss(kind, scale)
    return TrainingBatch(data, loss, metrics=distance(items))


def soft_datum(item: Lesson, *, skip: int, scale: float, renormalise: bool = True) -> Datum:
    """Soft targets: the probabilities of the teacher's top tokens at each position of the student's answer."""
    assert item.teacher is not None
    turn, teacher = item.turn, item.teacher
    before = len(turn.prompt_tokens)
    weights = [0.0] * (before + skip) + [scale] * (item.n_tokens - skip)
    datum = Datum.supervised([*turn.prompt_tokens, *turn.completion_tokens], weights)
    # A token is predicted at the position before it, and nothing is asked about the prompt.
    about = ((before - 1, 0), (0, 0))
    # Without a bucket for all others the top tokens have to stand for the whole distribution.
    return datum.soften(np.pad(teacher.tokens, about), np.pad(teacher.logprobs, about), renormalise=renormalise)


def policy_gradient_datum(item: Lesson, *, skip: int, scale: float, baseline: float = 0.0) -> Datum:
    """A policy gradient whose advantage at each token is how much more the teacher likes it than the student did."""
    turn = item.turn
    advantages = (_log_ratios(item) - baseline) * scale
    advantages[:skip] = 0.0
    return Datum.policy(turn.prompt_tokens, turn.completion_tokens, turn.logprobs, advantages.tolist())


def _log_ratios(item: Lesson) -> np.ndarray:
    return item.teacher_logprobs - np.asarray(item.turn.logprobs)


def bucket_loss(kind: Literal["reverse", "jsd"], scale: float) -> LossCallable:
    """A divergence between student and teacher over the teacher's top tokens and one bucket for all others.

    Without that bucket the student could leave the teacher's top tokens unpunished. The soft targets' weights are
    `scale` times the teacher's probabilities q. With p the student's, g the derivative by p, and p of the bucket
    1 - sum(p), the derivative by the log-probability of a token is p * (g - g of the bucket).
    """
    mix = 0.5

    @numpy_loss
    def loss(
        data: Sequence[Datum], logprobs: Sequence[np.ndarray]
    ) -> tuple[float, Mapping[str, float], list[np.ndarray]]:
        total, gradients = 0.0, list[np.ndarray]()
        for datum, lp in zip(data, logprobs, strict=True):
            # Positions of the prompt, and skipped ones, have no weight at all.
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
    """Probabilities of some tokens, and of all others together; none is 0, so that logarithms exist."""
    # In double precision: where the top tokens hold nearly everything, float32 would leave nothing of the difference.
    others = 1 - probabilities.sum(axis=1, keepdims=True, dtype=np.float64)
    return np.maximum(np.concatenate([probabilities, others], axis=1), 1e-9)


def distance(items: Sequence[Lesson]) -> dict[str, float]:
    """How far the student's own words are from what the teacher would have said, over all of their tokens."""
    metrics = {"teacher/reverse_kl": reverse_kl([item.liking for item in items], [item.n_tokens for item in items])}
    tops = [item.teacher.logprobs for item in items if item.teacher is not None]
    if tops:
        top = np.concatenate(tops)
        metrics["teacher/entropy_top"] = float(-(np.exp(top) * top).sum(axis=1).mean())
    return metrics


def reverse_kl(likings: Sequence[float], n_tokens: Sequence[int]) -> float:
    """The divergence per token over several answers; what is recorded of each of them gives exactly this."""
    return -sum(liking * n for liking, n in zip(likings, n_tokens, strict=True)) / sum(n_tokens)


def answer_rollouts(
    questions: Sequence[Sequence[Message]],
    names: Sequence[str],
    answers: Sequence[Turn | None],
    lessons: Sequence[Lesson],
    *,
    skip: int = 0,
) -> list[Rollout]:
    """The answers of a step as they are recorded: the teacher's liking is their reward.

    Lessons are about the answers that there are, in their order.
    """
    taught = {lesson.index: lesson for lesson in lessons if lesson.n_tokens > skip}
    rollouts: list[Rollout] = []
    n_answers = 0
    for name, question, turn in zip(names, questions, answers, strict=True):
        asked = [dict(message) for message in question]
        if turn is None:
            rollouts.append(Rollout(name, 0, "infra", None, [], asked, "the question leaves no room for an answer"))
            continue
        lesson, n_answers = taught.get(n_answers), n_answers + 1
        judged = {"teacher/reverse_kl": -lesson.liking, "teacher_tokens": lesson.n_tokens} if lesson else {}
        problem = "the answer was cut off at max_tokens" if turn.stop_reason == "length" else None
        rollouts.append(
            Rollout(
                name,
                0,
                status="truncated" if problem else "ok",
                reward=None if lesson is None else lesson.liking,
                turns=[turn],
                messages=[*asked, turn.message],
                error=problem if lesson is not None else "the teacher had no room to read it, or nothing to say of it",
                info=judged,
            )
        )
    return rollouts
