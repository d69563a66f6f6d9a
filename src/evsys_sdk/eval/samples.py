"""The samples that metrics are computed from: prediction, reward and cost of each attempt at a task.

Samples that failed because of infrastructure (a sandbox, a server) have neither reward nor prediction. Metrics exclude
them and count them in `n_missing`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..data.shapes import is_object
from ..errors import EvalError, show


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """The part of one attempt that metrics read."""

    reward: float | None = None
    prediction: str | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    tokens: int | None = None

    @property
    def failed(self) -> bool:
        """Whether there is nothing to score."""
        return self.reward is None and self.prediction is None


@dataclass(frozen=True, slots=True)
class TaskSamples:
    """All attempts at one task."""

    task_id: str
    samples: Sequence[ScoredSample]
    target: Any = None
    """Expected answer, for metrics that compare texts."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of the task, such as its toolkit."""


def task_rewards(tasks: Sequence[TaskSamples]) -> list[list[float]]:
    """One inner list per task, one reward per sample."""
    return [[_reward(task, at) for at in range(len(task.samples))] for task in tasks]


def _reward(task: TaskSamples, at: int) -> float:
    reward = task.samples[at].reward
    if reward is None:
        raise EvalError(f"sample {at} of task '{task.task_id}' has no reward. Only tasks with a verifier have rewards.")
    if not math.isfinite(reward):
        raise EvalError(f"sample {at} of task '{task.task_id}' has the reward {reward}. Correct its verifier.")
    return float(reward)


def predictions(tasks: Sequence[TaskSamples]) -> list[str]:
    """One text per sample."""
    texts: list[str] = []
    for task in tasks:
        for at, sample in enumerate(task.samples):
            if sample.prediction is None:
                raise EvalError(f"sample {at} of task '{task.task_id}' has no prediction to compare.")
            texts.append(sample.prediction)
    return texts


def targets(tasks: Sequence[TaskSamples]) -> list[Any]:
    """The expected answer of each sample."""
    return [_target(task) for task in tasks for _ in task.samples]


def metadata(tasks: Sequence[TaskSamples]) -> list[Mapping[str, Any]]:
    """The metadata of each sample's task."""
    return [task.metadata for task in tasks for _ in task.samples]


def _target(task: TaskSamples) -> Any:
    target = task.target
    if target is None:
        raise EvalError(f"task '{task.task_id}' has no target to compare with. Add what is expected, or use rewards.")
    # Metrics compare texts; an object is passed on for metrics that read it.
    return target if isinstance(target, str) or is_object(target) else json.dumps(target, ensure_ascii=False)


def drop_failed(tasks: Sequence[TaskSamples], place: str) -> tuple[list[TaskSamples], int]:
    """The tasks without their failed samples, and the number of failed samples."""
    if not tasks:
        raise EvalError(f"{place} has no tasks to score. Check that the benchmark is not empty.")
    repeated = [task_id for task_id, times in Counter(task.task_id for task in tasks).items() if times > 1]
    if repeated:
        raise EvalError(f"{place}: task {show(repeated[0])} occurs twice. Put all of its samples together.")
    complete = [replace(task, samples=[sample for sample in task.samples if not sample.failed]) for task in tasks]
    empty = [task.task_id for task in complete if not task.samples]
    if empty:
        raise EvalError(f"{place}: {len(empty)} tasks have no samples, the first one is {show(empty[0])}.")
    return complete, sum(len(task.samples) for task in tasks) - sum(len(task.samples) for task in complete)
