"""Scores as arrays: one row per seed of a run, one column per task that all arms answered.

Unusable arms are listed with the reason. Samples that failed for technical reasons do not count as zero; `extremes`
contains the score of each run with all of them taken as wrong, and as right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from ..hypothesis import MEANS
from ..statistics.two_level import IntArray, RunScores
from .evidence import ArmEvidence, Evidence, Score, ScoredSet, SetKey
from .question import Asked, base_model_scores

_LEAST_COVERAGE = 0.8
"""Minimum share of tasks with a score; an arm with fewer is excluded, because only common tasks are compared."""
UNTRAINED = ""
"""Key of the model before training in `extremes`."""

type Scored = Sequence[tuple[Score, ScoredSet]]


@dataclass(frozen=True, slots=True)
class Measured:
    """One metric of every run on one set, as arrays."""

    runs: Mapping[str, RunScores]
    """By name, in alphabetical order; only runs with at least one usable arm."""
    base_model: RunScores | None = None
    """The model before training, if it was scored."""
    unusable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Arm without a usable score -> reason."""
    n_clusters: int | None = None
    """Number of clusters of the tasks; None if the tasks are not clustered."""
    dropped_tasks: int = 0
    """Number of tasks left out for all arms because an arm has no score for them."""
    n_samples: Mapping[str, int] = field(default_factory=dict[str, int])
    failed_samples: Mapping[str, int] = field(default_factory=dict[str, int])
    hashes: frozenset[str] = frozenset()
    """sha256 of the tasks; several values if the arms were scored on different tasks."""
    extremes: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """The mean of each run with its missing samples taken as wrong, and as right; empty if none is missing."""

    @property
    def n_tasks(self) -> int | None:
        """Number of compared tasks; None if the metric has no scores by task."""
        return next((run.values.shape[1] for run in self.runs.values() if run.by_task), None)

    @property
    def is_saturated(self) -> bool:
        """Whether all runs have the same score on all tasks, so that the set cannot distinguish them."""
        runs = [*self.runs.values(), *([self.base_model] if self.base_model is not None else [])]
        values = {float(end) for run in runs for end in (run.values.min(), run.values.max())}
        return self.n_tasks is not None and len(runs) > 1 and len(values) == 1


def measure(evidence: Evidence, question: Asked, key: SetKey | None) -> Measured:
    """Collect the metric of a question from one scored set, or from the results of the arms if `key` is None."""
    found = {arm.arm: _score(arm, key, question.metric) for arm in evidence.arms}
    unusable = {arm: one for arm, one in found.items() if isinstance(one, str)}
    scores = {arm: one for arm, one in found.items() if isinstance(one, Score)}
    known = [score.per_task for score in scores.values()]
    asked = {task for tasks in known for task in tasks or ()} if None not in known else set[str]()
    for arm, score in list(scores.items()):
        if len(score.per_task or ()) < _LEAST_COVERAGE * len(asked):
            unusable[arm] = f"only {len(score.per_task or ())} of {len(asked)} tasks have a score"
            del scores[arm]
    base = base_model_scores(evidence, question, key)
    everyone = [score.per_task or {} for score in (*scores.values(), *(score for score, _ in base))]
    tasks = [task for task in sorted(asked) if all(task in one for one in everyone)]
    # By seed, so that `seeds` and `by_seed` of the conclusion have a fixed order.
    ordered = sorted((arm for arm in evidence.arms if arm.arm in scores), key=lambda arm: (arm.run, arm.seed, arm.arm))
    arms = {name: list(some) for name, some in groupby(ordered, key=lambda arm: arm.run)}
    scorings = {name: [arm.scorings[key] for arm in used if key is not None] for name, used in arms.items()}
    clusters = _number_clusters([one for some in scorings.values() for one in some], tasks)

    def collect(some: Sequence[Score], seeds: tuple[int, ...] = (), *, trained: bool = True) -> RunScores:
        rows = [[(one.per_task or {})[task] for task in tasks] if tasks else [one.value] for one in some]
        # One row for an untrained model: its scores from several arms are not several seeds.
        values = np.array(rows) if trained else np.array(rows).mean(axis=0, keepdims=True)
        return RunScores(values, by_task=bool(tasks), trained=trained, clusters=clusters, seeds=seeds)

    pairs: dict[str, Scored] = {
        name: [*zip((scores[arm.arm] for arm in arms[name]), some, strict=False)] for name, some in scorings.items()
    }
    pairs |= {UNTRAINED: base} if base else {}
    return Measured(
        runs={
            name: collect([scores[arm.arm] for arm in used], tuple(arm.seed for arm in used))
            for name, used in arms.items()
        },
        base_model=collect([score for score, _ in base], trained=False) if base else None,
        unusable=unusable,
        n_clusters=None if clusters is None else int(clusters.max()) + 1,
        dropped_tasks=len(asked) - len(tasks) if tasks else 0,
        n_samples={name: sum(map(_count_samples, some)) for name, some in scorings.items()},
        failed_samples={name: sum(one.failed_samples for one in some) for name, some in scorings.items()},
        hashes=frozenset(one.sha256 for some in pairs.values() for _, one in some if one.sha256),
        extremes=_find_extremes(question, pairs, asked) if tasks else {},
    )


def _score(arm: ArmEvidence, key: SetKey | None, metric: str) -> Score | str:
    """The score of an arm, or the reason why it has none."""
    if not arm.ended:
        return arm.problem or ("it has no result" if arm.status is None else f"it was {arm.status}")
    if key is None:
        return Score(arm.metrics[metric]) if metric in arm.metrics else f"it reports no finite {metric}"
    if key not in arm.scorings:
        return arm.unscored or f"it was not scored on {'/'.join(key)}"
    found = arm.scorings[key].scores.get(metric)
    return found or arm.unscored or f"{metric} has no finite value on {'/'.join(key)}"


def _count_samples(scoring: ScoredSet) -> int:
    return max((score.n_samples for score in scoring.scores.values()), default=0)


def _number_clusters(scorings: Sequence[ScoredSet], tasks: Sequence[str]) -> IntArray | None:
    """The cluster number of each task; None if the tasks are not clustered."""
    known = next((one.clusters for one in scorings if one.clusters), None)
    if known is None or not tasks:
        return None
    names = [("cluster", known[task]) if task in known else ("task", task) for task in tasks]
    at = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return np.array([at[name] for name in names], dtype=np.intp)


def _find_extremes(question: Asked, runs: Mapping[str, Scored], asked: set[str]) -> dict[str, tuple[float, float]]:
    """The mean of each run with missing samples taken as wrong, and as right; empty if none is missing."""
    scored = [one for some in runs.values() for one in some]
    tasks = asked.union(*(scoring.unscored for _, scoring in scored))
    if all(not _list_missing(*one, tasks) for one in scored):
        return {}
    values = [value for score, _ in scored for value in (score.per_task or {}).values()]
    ends = (0.0, 1.0) if question.is_rate else (min(0.0, *values), max(1.0, *values))
    # In a metric that is no mean over samples, one failed sample may change the whole score of its task.
    whole = question.metric not in MEANS

    def fill(score: Score, scoring: ScoredSet, value: float) -> float:
        known, missing = score.per_task or {}, _list_missing(score, scoring, tasks)
        left = {task: known.get(task, 0.0) for task in tasks}
        moved = [(1.0 if whole else share) * (value - left[task]) for task, share in missing.items()]
        return (sum(left.values()) + sum(moved)) / len(tasks)

    low, high = (
        {name: float(np.mean([fill(*one, end) for one in some])) for name, some in runs.items()} for end in ends
    )
    return {name: (low[name], high[name]) for name in runs}


def _list_missing(score: Score, scoring: ScoredSet, tasks: set[str]) -> dict[str, float]:
    """Task -> share of its samples without a score; only tasks with missing samples."""
    known, samples = score.per_task or {}, scoring.samples
    evenly = 0.0
    if scoring.failed_samples and not samples:  # the tasks of the failed samples are unknown
        evenly = scoring.failed_samples / (scoring.failed_samples + score.n_samples)
    found = {task: 1.0 for task in tasks if task not in known}
    for task in tasks & known.keys() if evenly or samples else ():
        given = samples.get(task) or ()
        if lost := sum(reward is None for reward in given) / len(given) if given else evenly:
            found[task] = lost
    return found
