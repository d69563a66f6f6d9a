"""Scores as arrays: one row per seed of a run, one column per task that all arms answered.

Unusable arms are listed with the reason. Samples that failed for technical reasons do not count as zero; `extremes`
of a run contains its score with all of them taken as wrong, and as right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..hypothesis import MEANS
from ..statistics.two_level import IntArray, RunScores
from .evidence import ArmEvidence, Evidence, Score, ScoredSet, SetKey
from .question import Asked, base_model_scores

_LEAST_COVERAGE = 0.8
"""Minimum share of tasks with a score; an arm with fewer is excluded, because only common tasks are compared."""

type Scored = tuple[Score, ScoredSet]


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric of every run on one set, as arrays."""

    runs: Mapping[str, RunScores]
    """By name, in alphabetical order; only runs with at least one usable arm."""
    base_model: RunScores | None
    """The model before training, if it was scored."""
    unusable: Mapping[str, str]
    """Arm without a usable score -> reason."""
    n_tasks: int | None
    """Number of compared tasks; None if the metric has no scores by task."""
    dropped_tasks: int
    """Number of tasks left out for all arms because an arm has no score for them."""
    n_samples: int
    failed_samples: Mapping[str, int]
    """By run."""
    hashes: frozenset[str]
    """sha256 of the tasks; several values if the arms were scored on different tasks."""

    @property
    def n_clusters(self) -> int | None:
        """Number of clusters of the tasks; None if the tasks are not clustered."""
        return next((int(run.clusters.max()) + 1 for run in self.runs.values() if run.clusters is not None), None)

    @property
    def is_saturated(self) -> bool:
        """Whether all runs have the same score on all tasks, so that the set cannot distinguish them."""
        runs = [*self.runs.values(), *([self.base_model] if self.base_model is not None else [])]
        values = {float(end) for run in runs for end in (run.values.min(), run.values.max())}
        return self.n_tasks is not None and len(runs) > 1 and len(values) == 1


def measure(evidence: Evidence, question: Asked, key: SetKey | None) -> Measured:
    """Collect the metric of a question from one scored set, or from the results of the arms if `key` is None."""
    found = {arm.arm: _find_score(arm, key, question.metric) for arm in evidence.arms}
    unusable = {arm: one for arm, one in found.items() if isinstance(one, str)}
    scored = {arm: one for arm, one in found.items() if not isinstance(one, str)}
    known = [score.per_task for score, _ in scored.values()]
    asked = {task for tasks in known for task in tasks or ()} if None not in known else set[str]()
    for arm, (score, _) in list(scored.items()):
        if len(score.per_task or ()) < _LEAST_COVERAGE * len(asked):
            unusable[arm] = f"only {len(score.per_task or ())} of {len(asked)} tasks have a score"
            del scored[arm]
    base = base_model_scores(evidence, question, key)
    tasks = sorted(asked.intersection(*(score.per_task or () for score, _ in (*scored.values(), *base))))
    # By seed, so that `seeds` and `by_seed` of the conclusion have a fixed order.
    ordered = sorted((arm for arm in evidence.arms if arm.arm in scored), key=lambda arm: (arm.run, arm.seed, arm.arm))
    arms = {name: list(some) for name, some in groupby(ordered, key=lambda arm: arm.run)}
    of_runs = {name: [scored[arm.arm] for arm in some] for name, some in arms.items()}
    everyone = [*(one for some in of_runs.values() for one in some), *base]
    clusters = _number_clusters([one for _, one in everyone], tasks)
    all_tasks = asked.union(*(one.unscored for _, one in everyone))
    values = [0.0, 1.0, *(value for score, _ in everyone for value in (score.per_task or {}).values())]
    ends = (min(values), max(values)) if tasks and any(_find_lost(*one, all_tasks) for one in everyone) else None

    def collect(some: Sequence[Scored], seeds: tuple[int, ...] = (), *, trained: bool = True) -> RunScores:
        rows = [[(score.per_task or {})[task] for task in tasks] if tasks else [score.value] for score, _ in some]
        # One row for an untrained model: its scores from several arms are not several seeds.
        array = np.array(rows) if trained else np.array(rows).mean(axis=0, keepdims=True)
        filled = [float(np.mean([_fill(question, one, all_tasks, end) for one in some])) for end in ends or ()]
        return RunScores(array, trained=trained, clusters=clusters, seeds=seeds, extremes=filled)

    return Measured(
        runs={name: collect(some, tuple(arm.seed for arm in arms[name])) for name, some in of_runs.items()},
        base_model=collect(base, trained=False) if base else None,
        unusable=unusable,
        n_tasks=len(tasks) or None,
        dropped_tasks=len(asked) - len(tasks) if tasks else 0,
        n_samples=sum(one.n_samples for some in of_runs.values() for _, one in some),
        failed_samples={name: sum(one.failed_samples for _, one in some) for name, some in of_runs.items()},
        hashes=frozenset(one.sha256 for _, one in everyone if one.sha256),
    )


def _find_score(arm: ArmEvidence, key: SetKey | None, metric: str) -> Scored | str:
    """The score of an arm, or the reason why it has none."""
    if not arm.ended:
        return arm.problem or ("it has no result" if arm.status is None else f"it was {arm.status}")
    if key is None:
        found = arm.metrics.get(metric)
        return f"it reports no finite {metric}" if found is None else (Score(found), ScoredSet(("", ""), 0, "", {}))
    if key not in arm.scorings:
        return arm.unscored or f"it was not scored on {'/'.join(key)}"
    score = arm.scorings[key].scores.get(metric)
    if score is None:
        return arm.unscored or f"{metric} has no finite value on {'/'.join(key)}"
    return score, arm.scorings[key]


def _number_clusters(scorings: Sequence[ScoredSet], tasks: Sequence[str]) -> IntArray | None:
    """The cluster number of each task; None if the tasks are not clustered."""
    known = next((one.clusters for one in scorings if one.clusters), None)
    if known is None or not tasks:
        return None
    names = [f"cluster {known[task]}" if task in known else f"task {task}" for task in tasks]
    return np.unique(names, return_inverse=True)[1]


def _fill(question: Asked, scored: Scored, tasks: set[str], value: float) -> float:
    """The mean of an arm over tasks, with this value for missing samples."""
    known, lost = scored[0].per_task or {}, _find_lost(*scored, tasks)
    if question.metric not in MEANS:  # one failed sample may change the whole score of its task
        lost = dict.fromkeys(lost, 1.0)
    kept = sum((1 - lost.get(task, 0.0)) * score for task, score in known.items())
    return (kept + value * sum(lost.values())) / len(tasks)


def _find_lost(score: Score, scoring: ScoredSet, tasks: set[str]) -> dict[str, float]:
    """Task -> share of its samples without a score; only tasks with missing samples."""
    known = score.per_task or {}
    rewards = {task: scoring.samples.get(task, ()) if task in known else (None,) for task in tasks}
    return {task: sum(one is None for one in some) / len(some) for task, some in rewards.items() if None in some}
