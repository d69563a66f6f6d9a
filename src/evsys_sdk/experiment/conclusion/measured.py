"""Scores as arrays: the seeds of each run as rows, the tasks that all of them answered as columns.

What cannot be used is named with the reason; nothing is dropped in silence. Samples that failed on our side are no
zeros, but they may have been: `lowest` and `highest` hold what each run would have scored if all of them were wrong,
or all were right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from ..hypothesis import MEANS
from ..statistics.two_level import FloatArray, IntArray, RunScores
from .evidence import ArmEvidence, Evidence, Score, Scoring, SetKey
from .question import Asked, base_model_keys

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
    n_clusters: int | None = None
    """How many clusters these are drawn from; None where every task stands for itself."""
    dropped_tasks: int = 0
    """Tasks that some arm has no score for, left out for all."""
    n_samples: Mapping[str, int] = field(default_factory=dict[str, int])
    failed_samples: Mapping[str, int] = field(default_factory=dict[str, int])
    hashes: frozenset[str] = frozenset()
    """Of the tasks; more than one means that the runs did not answer the same ones."""
    lowest: Mapping[str, RunScores] = field(default_factory=dict[str, RunScores])
    """Every run with its missing samples taken as wrong; empty where none is missing."""
    highest: Mapping[str, RunScores] = field(default_factory=dict[str, RunScores])


def is_saturated(measured: Measured) -> bool:
    """Whether all runs score the same on all tasks, such as nothing, so that the set cannot tell them apart."""
    runs = [*measured.runs.values(), *([measured.base_model] if measured.base_model is not None else [])]
    ends = [float(value) for run in runs for value in (run.values.min(), run.values.max())]
    return measured.by_task and len(runs) > 1 and min(ends) == max(ends)


def measure(evidence: Evidence, question: Asked, key: SetKey | None) -> Measured:
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
        return _by_task(evidence, question, key, scores, unusable, base)
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
    question: Asked,
    key: SetKey,
    scores: dict[str, Score],
    unusable: dict[str, str],
    base: Sequence[tuple[Score, str]],
) -> Measured:
    asked = _list_tasks([score.per_task or {} for score in scores.values()])
    for arm, score in list(scores.items()):
        if len(score.per_task or ()) < _LEAST_COVERAGE * len(asked):
            unusable[arm] = f"only {len(score.per_task or ())} of {len(asked)} tasks have a score"
            del scores[arm]
    everyone = [score.per_task or {} for score in chain(scores.values(), (score for score, _ in base))]
    whole = all(len(tasks) == len(asked) for tasks in everyone) and not base
    common = asked if whole else [task for task in asked if all(task in tasks for tasks in everyone)]
    if not common:
        return _by_value(evidence, key, scores, unusable, base)
    scorings = {arm.arm: arm.scorings[key] for arm in evidence.arms if arm.arm in scores}
    clusters = _clusters(scorings.values(), common)
    rows = {arm: _row(score.per_task or {}, common) for arm, score in scores.items()}
    found = _measure(evidence, key, rows, unusable, clusters=clusters, by_task=True)
    found = replace(
        found,
        dropped_tasks=len(asked) - len(common),
        n_clusters=None if clusters is None else int(clusters.max()) + 1,
    )
    found = _with_base_model(found, base, [_row(score.per_task or {}, common) for score, _ in base])
    return _with_bounds(found, evidence, question, key, scores, asked)


def _list_tasks(each: Sequence[Mapping[str, float]]) -> list[str]:
    """Every task that some arm has a score for, in alphabetical order; most often all arms have the same ones."""
    first = list(each[0]) if each else []
    if all(len(one) == len(first) and list(one) == first for one in each):
        return sorted(first)
    return sorted({task for one in each for task in one})


def _row(per_task: Mapping[str, float], tasks: Sequence[str]) -> FloatArray:
    return np.fromiter(map(per_task.__getitem__, tasks), dtype=np.float64, count=len(tasks))


def _clusters(scorings: Iterable[Scoring], tasks: Sequence[str]) -> IntArray | None:
    """The number of each task's cluster; None where no task has one."""
    known = next((one.clusters for one in scorings if one.clusters), None)
    if known is None:
        return None
    return _number([f"cluster {known[task]}" if task in known else f"task {task}" for task in tasks])


def _number(names: Sequence[str]) -> IntArray:
    at = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return np.array([at[name] for name in names], dtype=np.intp)


def _with_bounds(
    measured: Measured,
    evidence: Evidence,
    question: Asked,
    key: SetKey,
    scores: Mapping[str, Score],
    asked: Sequence[str],
) -> Measured:
    """The same with everything that is missing taken as wrong, and as right."""
    arms = {arm.arm: arm.scorings[key] for arm in evidence.arms if arm.arm in scores}
    unscored = {task for one in arms.values() for task in one.unscored}
    everything = sorted({*asked, *unscored}) if unscored else asked
    shares = {arm: _share_missing(scores[arm], one, everything) for arm, one in arms.items()}
    if not any(share.any() for share in shares.values()):
        return measured
    low, high = _range(question, scores.values())
    clusters = _clusters(arms.values(), everything)
    # In other metrics a failed sample may move all of its task's score.
    whole = question.metric not in MEANS

    def fill(value: float) -> dict[str, RunScores]:
        rows = {arm: _fill(scores[arm], everything, shares[arm], value, whole=whole) for arm in arms}
        return dict(_measure(evidence, key, rows, {}, clusters=clusters, by_task=True).runs)

    return replace(measured, lowest=fill(low), highest=fill(high))


def _range(question: Asked, scores: Iterable[Score]) -> tuple[float, float]:
    """The worst and the best a sample can score, as far as that is known."""
    values = [value for score in scores for value in (score.per_task or {}).values()]
    return (0.0, 1.0) if question.is_rate else (min(0.0, *values), max(1.0, *values))


def _share_missing(score: Score, scoring: Scoring, tasks: Sequence[str]) -> FloatArray:
    """The share of the samples of each task that has no score."""
    known = score.per_task or {}
    samples = scoring.samples
    evenly = 0.0
    if scoring.failed_samples and not samples:  # nothing tells which tasks they belonged to
        evenly = scoring.failed_samples / (scoring.failed_samples + score.n_samples)
    found = np.full(len(tasks), evenly)
    if not samples and len(known) == len(tasks):
        return found
    for at, task in enumerate(tasks):
        if task not in known:
            found[at] = 1.0
        elif task in samples and None in samples[task]:
            found[at] = sum(reward is None for reward in samples[task]) / len(samples[task])
    return found


def _fill(score: Score, tasks: Sequence[str], shares: FloatArray, value: float, *, whole: bool) -> FloatArray:
    known = score.per_task or {}
    row = np.array([known.get(task, value) for task in tasks])
    missing = (shares > 0).astype(float) if whole else shares
    return row * (1 - missing) + value * missing


def _by_value(
    evidence: Evidence,
    key: SetKey,
    scores: Mapping[str, Score],
    unusable: Mapping[str, str],
    base: Sequence[tuple[Score, str]],
) -> Measured:
    rows = {arm: np.array([score.value]) for arm, score in scores.items()}
    found = _measure(evidence, key, rows, unusable)
    return _with_base_model(found, base, [np.array([score.value]) for score, _ in base])


def _base_model(evidence: Evidence, question: Asked, key: SetKey) -> list[tuple[Score, str]]:
    """What the model before training scored, and on which tasks; every arm may have asked it anew."""
    found: list[tuple[Score, str]] = []
    for at in base_model_keys(evidence, question, key):
        scorings = [arm.scorings[at] for arm in evidence.arms if at in arm.scorings]
        found += [(one.scores[question.metric], one.sha256) for one in scorings if question.metric in one.scores]
    return found


def _with_base_model(measured: Measured, base: Sequence[tuple[Score, str]], rows: Sequence[FloatArray]) -> Measured:
    if not base:
        return measured
    clusters = next((run.clusters for run in measured.runs.values()), None)
    # One row: a model that several arms have asked is still one model, and must not pass for several seeds.
    values = np.array(rows).mean(axis=0, keepdims=True)
    scores = RunScores(values, by_task=measured.by_task, trained=False, clusters=clusters)
    hashes = measured.hashes | {sha256 for _, sha256 in base if sha256}
    return replace(measured, base_model=scores, hashes=hashes)


def _from_results(evidence: Evidence, metric: str) -> Measured:
    usable = [arm for arm in evidence.arms if arm.ended and metric in arm.metrics]
    values = {arm.arm: np.array([arm.metrics[metric]]) for arm in usable}
    unusable = {
        arm.arm: _why_unfinished(arm) if not arm.ended else f"it reports no finite {metric}"
        for arm in evidence.arms
        if arm.arm not in values
    }
    return _measure(evidence, None, values, unusable)


def _measure(
    evidence: Evidence,
    key: SetKey | None,
    rows: Mapping[str, FloatArray],
    unusable: Mapping[str, str],
    *,
    clusters: IntArray | None = None,
    by_task: bool = False,
) -> Measured:
    runs: dict[str, RunScores] = {}
    samples: dict[str, int] = {}
    failed: dict[str, int] = {}
    hashes: set[str] = set()
    for run in sorted(evidence.runs, key=lambda run: run.name):
        # By seed, because runs are paired row by row.
        used = sorted((arm for arm in run.arms if arm.arm in rows), key=lambda arm: (arm.seed, arm.arm))
        if not used:
            continue
        values = np.stack([rows[arm.arm] for arm in used])
        seeds = tuple(arm.seed for arm in used)
        runs[run.name] = RunScores(values, by_task=by_task, clusters=clusters, seeds=seeds)
        scorings = [arm.scorings[key] for arm in used if key is not None]
        samples[run.name] = sum(max((score.n_samples for score in one.scores.values()), default=0) for one in scorings)
        failed[run.name] = sum(one.failed_samples for one in scorings)
        hashes |= {one.sha256 for one in scorings if one.sha256}
    return Measured(
        runs=runs,
        unusable=unusable,
        by_task=by_task,
        n_tasks=next((scores.values.shape[1] for scores in runs.values()), None) if by_task else None,
        n_samples=samples,
        failed_samples=failed,
        hashes=frozenset(hashes),
    )
