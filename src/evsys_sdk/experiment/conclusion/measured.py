"""Scores as arrays: the seeds of each run as rows, the tasks that all of them answered as columns.

What cannot be used is named with the reason; nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

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
    base = _base_model(evidence, question, key)
    if scores and all(score.per_task is not None for score in scores.values()):
        return _by_task(evidence, key, scores, unusable, base)
    return _by_value(evidence, key, scores, unusable, base)


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
    evidence: Evidence,
    key: SetKey,
    scores: dict[str, Score],
    unusable: dict[str, str],
    base: Sequence[tuple[Score, str]],
) -> Measured:
    asked = {task for score in scores.values() for task in score.per_task or ()}
    for arm, score in list(scores.items()):
        if len(score.per_task or ()) < _LEAST_COVERAGE * len(asked):
            unusable[arm] = f"only {len(score.per_task or ())} of {len(asked)} tasks have a score"
            del scores[arm]
    everyone = [score.per_task or {} for score in [*scores.values(), *(score for score, _ in base)]]
    common = sorted(task for task in asked if all(task in tasks for tasks in everyone))
    if not common:
        return _by_value(evidence, key, scores, unusable, base)
    rows = {arm: [(score.per_task or {})[task] for task in common] for arm, score in scores.items()}
    found = _measured(evidence, key, rows, unusable, by_task=True, dropped=len(asked) - len(common))
    return _with_base_model(found, base, [[(score.per_task or {})[task] for task in common] for score, _ in base])


def _by_value(
    evidence: Evidence,
    key: SetKey,
    scores: Mapping[str, Score],
    unusable: Mapping[str, str],
    base: Sequence[tuple[Score, str]],
) -> Measured:
    found = _measured(evidence, key, {arm: score.value for arm, score in scores.items()}, unusable)
    return _with_base_model(found, base, [[score.value] for score, _ in base])


def _base_model(evidence: Evidence, question: Question, key: SetKey) -> list[tuple[Score, str]]:
    """What the model before training scored, and on which tasks; every arm may have asked it anew."""
    found: list[tuple[Score, str]] = []
    for at in base_model_keys(evidence, question, key):
        scorings = [arm.scorings[at] for arm in evidence.arms if at in arm.scorings]
        found += [(one.scores[question.metric], one.sha256) for one in scorings if question.metric in one.scores]
    return found


def _with_base_model(
    measured: Measured, base: Sequence[tuple[Score, str]], rows: Sequence[Sequence[float]]
) -> Measured:
    if not base:
        return measured
    scores = RunScores(np.array(rows).mean(axis=0, keepdims=True), by_task=measured.by_task, trained=False)
    hashes = measured.hashes | {sha256 for _, sha256 in base if sha256}
    return replace(measured, base_model=scores, hashes=hashes)


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
