"""Scores as arrays: the seeds of each run as rows, the tasks that all of them answered as columns.

What cannot be used is named with the reason; nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...config.metadata import BASE_MODEL
from ..statistics.two_level import RunScores
from .evidence import ArmEvidence, Evidence, Score, SetKey
from .question import Question, base_model_keys

_LEAST_COVERAGE = 0.8
"""Share of the tasks an arm must have answered to be compared at all, so that it cannot shrink the set for everyone."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric of every run on one set, ready to be compared."""

    runs: Mapping[str, RunScores]
    """By name, in alphabetical order; only runs with at least one usable arm."""
    base_model: RunScores | None = None
    """The model before training, where it was scored on the same tasks."""
    unusable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arms without a usable score, and why."""
    by_task: bool = False
    n_tasks: int | None = None
    """How many tasks are compared; None where the metric has no scores by task."""
    dropped_tasks: int = 0
    """Tasks that some arm has no score for, left out for all."""
    n_samples: Mapping[str, int] = field(default_factory=dict[str, int])
    failed_samples: Mapping[str, int] = field(default_factory=dict[str, int])
    hashes: frozenset[str] = frozenset()
    """Of the tasks; more than one means that the runs did not answer the same ones."""


def saturated(measured: Measured) -> bool:
    """Whether all runs score the same on all tasks, such as nothing, so that the set cannot tell them apart."""
    ends = [value for run in measured.runs.values() for value in (run.values.min(), run.values.max())]
    return measured.by_task and len(measured.runs) > 1 and min(ends) == max(ends)


def measure(evidence: Evidence, question: Question, key: SetKey | None) -> Measured:
    """The metric of the question on one set, or as the runs report it themselves."""
    if key is None:
        return _from_results(evidence, question.metric)
    scores: dict[str, Score] = {}
    unusable: dict[str, str] = {}
    for arm in evidence.arms:
        score, why = _score(arm, key, question.metric)
        if score is not None:
            scores[arm.arm] = score
        else:
            unusable[arm.arm] = why
    if scores and all(score.per_task is not None for score in scores.values()):
        return _by_task(evidence, question, key, scores, unusable)
    values = {arm: score.value for arm, score in scores.items()}
    return _measured(evidence, key, values, unusable)


def _score(arm: ArmEvidence, key: SetKey, metric: str) -> tuple[Score | None, str]:
    scoring = arm.scorings.get(key)
    if not arm.ended:
        return None, _why_unfinished(arm)
    if scoring is None:
        return None, arm.unscored or f"it was not scored on {'/'.join(key)}"
    score = scoring.scores.get(metric)
    return score, arm.unscored or f"{metric} has no finite value on {'/'.join(key)}"


def _why_unfinished(arm: ArmEvidence) -> str:
    if arm.problem is not None or arm.stopped is not None:
        return arm.problem or f"stopped by the search: {arm.stopped}"
    return "it has no result" if arm.status is None else f"it was {arm.status}"


def _by_task(
    evidence: Evidence, question: Question, key: SetKey, scores: dict[str, Score], unusable: dict[str, str]
) -> Measured:
    asked = {task for score in scores.values() for task in score.per_task or ()}
    for arm, score in list(scores.items()):
        if len(score.per_task or ()) < _LEAST_COVERAGE * len(asked):
            unusable[arm] = f"only {len(score.per_task or ())} of {len(asked)} tasks have a score"
            del scores[arm]
    base = _base_model_scores(evidence, question, key)
    everyone = [*(score.per_task or {} for score in scores.values()), *base]
    common = sorted(task for task in asked if all(task in tasks for tasks in everyone))
    if not common:
        return _measured(evidence, key, {arm: score.value for arm, score in scores.items()}, unusable)
    rows = {arm: [(score.per_task or {})[task] for task in common] for arm, score in scores.items()}
    found = _measured(evidence, key, rows, unusable, by_task=True, dropped=len(asked) - len(common))
    if not base:
        return found
    frozen = np.array([[tasks[task] for task in common] for tasks in base]).mean(axis=0, keepdims=True)
    return replace(found, base_model=RunScores(frozen, trained=False))


def _base_model_scores(evidence: Evidence, question: Question, key: SetKey) -> list[Mapping[str, float]]:
    """What the model before training scored, task by task; every arm may have asked it anew."""
    [at] = base_model_keys(evidence, question, key) or [("", BASE_MODEL)]
    found = [arm.scorings[at].scores.get(question.metric) for arm in evidence.arms if at in arm.scorings]
    return [score.per_task for score in found if score is not None and score.per_task]


def _from_results(evidence: Evidence, metric: str) -> Measured:
    usable = [arm for arm in evidence.arms if arm.ended and metric in arm.metrics]
    values = {arm.arm: arm.metrics[metric] for arm in usable}
    unusable = {
        arm.arm: _why_unfinished(arm) if not arm.ended else f"it reports no finite {metric}"
        for arm in evidence.arms
        if arm.arm not in values
    }
    return _measured(evidence, None, values, unusable)


def _measured(
    evidence: Evidence,
    key: SetKey | None,
    rows: Mapping[str, float | Sequence[float]],
    unusable: Mapping[str, str],
    *,
    by_task: bool = False,
    dropped: int = 0,
) -> Measured:
    runs: dict[str, RunScores] = {}
    samples: dict[str, int] = {}
    failed: dict[str, int] = {}
    hashes: set[str] = set()
    for run in sorted(evidence.runs, key=lambda run: run.name):
        used = [arm for arm in run.arms if arm.arm in rows]
        if not used:
            continue
        values = [np.atleast_1d(np.asarray(rows[arm.arm], dtype=np.float64)) for arm in used]
        runs[run.name] = RunScores(np.stack(values), by_task=by_task)
        scorings = [arm.scorings[key] for arm in used if key is not None]
        samples[run.name] = sum(max((score.n_samples for score in one.scores.values()), default=0) for one in scorings)
        failed[run.name] = sum(one.failed_samples for one in scorings)
        hashes |= {one.sha256 for one in scorings if one.sha256}
    return Measured(
        runs=runs,
        unusable=unusable,
        by_task=by_task,
        n_tasks=next((scores.values.shape[1] for scores in runs.values()), None) if by_task else None,
        dropped_tasks=dropped,
        n_samples=samples,
        failed_samples=failed,
        hashes=frozenset(hashes),
    )
