"""Differences between runs and a baseline, with task sampling variance and seed variance.

Runs answer the same tasks, so they are compared task by task. For run r with n_r seeds and baseline b:

    SE^2 = V_tasks + s2_r / n_r + s2_b / n_b

    V_tasks   cluster-robust variance of the mean paired difference, over the means of the seeds:
              C / (C - 1) * sum over clusters of (sum over its tasks of (d_t - D))^2 / T^2
    s2_r      seed variance of a run: max(pooled, own variance of the seed means), less the part of it that the answers
              to single tasks explain, which V_tasks contains already; never below 0

Degrees of freedom follow from Satterthwaite's formula, with C - 1 for the tasks and the pooled seeds for the seeds;
`own_df` has the seeds of the two runs alone, for the end of the interval that supports no claim. A model that was not
trained (`trained=False`) has no seed variance. A metric without scores by task is compared by the scores of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

type FloatArray = npt.NDArray[np.float64]
type IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class RunScores:
    """What the seeds of one run scored."""

    values: FloatArray
    """Seeds x tasks, the tasks in the same order in every run; a single column where there are no scores by task."""
    by_task: bool = True
    """Whether a column is a task; else it is the score of the seed."""
    trained: bool = True
    """False for a model as it is, which no seed can change."""
    is_level: bool = False
    """Whether it is a claimed level rather than a model."""
    clusters: IntArray | None = None
    """Number of the cluster that each task belongs to; None where every task stands for itself."""
    seeds: tuple[int, ...] = ()
    """Which seeds, in the order of the rows; empty where that is not known."""

    @property
    def n_seeds(self) -> int:
        return len(self.values)

    @cached_property
    def mean(self) -> float:
        return float(self.values.mean())

    @cached_property
    def task_means(self) -> FloatArray:
        return self.values.mean(axis=0)

    @cached_property
    def seed_means(self) -> FloatArray:
        return self.values.mean(axis=1)

    @cached_property
    def seed_variance(self) -> float | None:
        """How far the seeds lie apart; None where they cannot."""
        return float(self.seed_means.var(ddof=1)) if self.trained and self.n_seeds > 1 else None

    @cached_property
    def seed_noise(self) -> SeedNoise | None:
        """What its own seeds say about the noise; None where they cannot."""
        if self.seed_variance is None:
            return None
        return SeedNoise(self.seed_variance, _variance_by_tasks(self), self.n_seeds - 1)

    @cached_property
    def tasks_df(self) -> float:
        """Degrees of freedom of the task variance: clusters less one, fewer where they differ much in size."""
        tasks = self.values.shape[1]
        if not self.by_task or tasks < 2:
            return 0.0
        if self.clusters is None:
            return float(tasks - 1)
        sizes = np.bincount(self.clusters)
        return max(0.0, tasks**2 / float((sizes.astype(float) ** 2).sum()) - 1)


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """Variance of the scores of the seeds of one run, pooled over runs."""

    between: float
    """Variance of the seed means."""
    explained: float
    """The part of it that the answers to single tasks explain."""
    df: int

    @property
    def component(self) -> float:
        """The part that all tasks of a seed share."""
        return max(0.0, self.between - self.explained)


@dataclass(frozen=True, slots=True)
class Differences:
    """Each candidate minus the baseline."""

    estimates: FloatArray
    stderr: FloatArray
    df: FloatArray
    own_df: FloatArray
    """Without the seeds of other runs: smaller, and right where one run is noisier than the others."""
    task_variance: FloatArray
    """The part of the variance that more tasks would reduce."""
    noise: SeedNoise | None
    """None where no run has two seeds: then the seed variance is unknown and in no interval."""
    seeds: tuple[int, ...] = ()
    """How many each candidate has."""
    baseline_seeds: int = 0
    """0 for a model that was not trained."""
    tasks_df: float = 0.0


def seed_noise(runs: Sequence[RunScores]) -> SeedNoise | None:
    """Pooled over all runs that have at least two seeds."""
    known = [one for run in runs if (one := run.seed_noise) is not None]
    df = sum(one.df for one in known)
    if not df:
        return None
    between = sum(one.df * one.between for one in known) / df
    return SeedNoise(between, sum(one.df * one.explained for one in known) / df, df)


def compare(
    baseline: RunScores, candidates: Sequence[RunScores], *, others: Sequence[RunScores] = ()
) -> Differences | None:
    """All differences at once; None where nothing tells how noisy they are. `others` only add to the pooled seeds."""
    noise = seed_noise([baseline, *candidates, *others])
    task_part = _task_variance(baseline, candidates)
    if noise is None and task_part is None:
        return None
    tasks = np.zeros(len(candidates)) if task_part is None else task_part
    estimates = np.array([run.mean - baseline.mean for run in candidates])
    seeds = np.array([seed_part(run, noise) for run in candidates]) + seed_part(baseline, noise)
    stderr = np.sqrt(tasks + seeds)
    # What arithmetic leaves over of equal scores is no noise; seeds that agree to the last digit tell nothing.
    rounding = 1e-9 * max(float(np.abs(run.values).max()) for run in [baseline, *candidates])
    stderr = np.where(stderr > rounding, stderr, 0.0)
    if task_part is None and not np.all(stderr > 0):
        return None
    shares = np.array([[_share(run), _share(baseline)] for run in candidates])
    own = np.array([[run.seed_variance or 0.0, baseline.seed_variance or 0.0] for run in candidates])
    known = np.array([[max(run.n_seeds - 1, 1), max(baseline.n_seeds - 1, 1)] for run in candidates])
    variance, tasks_df = stderr**2, candidates[0].tasks_df
    return Differences(
        estimates,
        stderr,
        _degrees_of_freedom(variance, tasks, tasks_df, shares, own, noise),
        _degrees_of_freedom(variance, tasks, tasks_df, shares, own, noise, known),
        tasks,
        noise,
        seeds=tuple(run.n_seeds for run in candidates),
        baseline_seeds=baseline.n_seeds if baseline.trained else 0,
        tasks_df=0.0 if task_part is None else candidates[0].tasks_df,
    )


def run_mean(run: RunScores, noise: SeedNoise | None) -> tuple[float, float] | None:
    """Standard error and degrees of freedom of the score of one run; None where neither tasks nor seeds give one."""
    found = contrast([run], np.array([1.0]), noise)
    return None if found is None else found[1:]


def contrast(
    runs: Sequence[RunScores], weights: FloatArray, noise: SeedNoise | None = None
) -> tuple[float, float, float] | None:
    """A weighted sum of the scores of runs, with its standard error and degrees of freedom."""
    noise = noise or seed_noise(runs)
    estimate = float(sum(weight * run.mean for weight, run in zip(weights, runs, strict=True)))
    tasks, tasks_df = 0.0, runs[0].tasks_df
    if all(run.by_task for run in runs) and tasks_df > 0:
        by_task = weights @ np.stack([run.task_means for run in runs])
        tasks = _variance_of_mean(by_task, runs[0].clusters)
        if tasks <= 1e-18:
            tasks = _unanimous(float(by_task.mean()), runs, tasks_df + 1, alone=len(runs) == 1)
    squares = (weights**2).tolist()
    variance = tasks + sum(weight * seed_part(run, noise) for weight, run in zip(squares, runs, strict=True))
    if variance <= 0:
        return None
    shares = np.array([[weight * _share(run) for weight, run in zip(squares, runs, strict=True)]])
    own = np.array([[run.seed_variance or 0.0 for run in runs]])
    df = _degrees_of_freedom(np.array([variance]), np.array([tasks]), tasks_df, shares, own, noise)
    return estimate, math.sqrt(variance), float(df[0])


def seed_part(run: RunScores, noise: SeedNoise | None) -> float:
    """What the seed variance adds to the variance of a run's score."""
    if noise is None:
        return 0.0
    return max(0.0, max(noise.between, run.seed_variance or 0.0) - noise.explained) * _share(run)


def _share(run: RunScores) -> float:
    return 1 / run.n_seeds if run.trained else 0.0


def _degrees_of_freedom(
    variance: FloatArray,
    tasks: FloatArray,
    tasks_df: float,
    shares: FloatArray,
    own: FloatArray,
    noise: SeedNoise | None,
    seeds_df: FloatArray | None = None,
) -> FloatArray:
    """Satterthwaite; `shares` and `own` have a row for each difference and a column for each run in it.

    `seeds_df`: of each run's seed variance, if not of all runs together.
    """
    known = max(tasks_df, 1.0)
    if noise is None:
        return np.full(len(tasks), known)
    of_seeds = (shares * np.maximum(own, noise.between)) ** 2 / (noise.df if seeds_df is None else seeds_df)
    doubt = tasks**2 / known + of_seeds.sum(axis=1)
    found = np.divide(variance**2, doubt, out=np.ones_like(doubt), where=doubt > 0)
    return np.clip(found, 1.0, float(max(known, noise.df)))


def _variance_by_tasks(run: RunScores) -> float:
    """Variance of a seed's mean that its answers to single tasks explain."""
    if not run.by_task or run.tasks_df <= 0:
        return 0.0
    left = run.values - run.task_means - run.seed_means[:, None] + run.mean
    sums = _cluster_sums(left, run.clusters)
    clusters = sums.shape[-1]
    return float((sums**2).sum()) / (run.n_seeds - 1) * clusters / (clusters - 1) / run.values.shape[1] ** 2


def _cluster_sums(deviations: FloatArray, clusters: IntArray | None) -> FloatArray:
    if clusters is None:
        return deviations
    members = np.zeros((len(clusters), int(clusters.max()) + 1))
    members[np.arange(len(clusters)), clusters] = 1.0
    return deviations @ members


def _variance_of_mean(by_task: FloatArray, clusters: IntArray | None) -> float:
    """Cluster-robust variance of a mean over tasks."""
    sums = _cluster_sums(by_task - by_task.mean(), clusters)
    return len(sums) / (len(sums) - 1) * float((sums**2).sum()) / len(by_task) ** 2


def _task_variance(baseline: RunScores, candidates: Sequence[RunScores]) -> FloatArray | None:
    """Of the differences to the baseline; None where the metric has no scores by task, or one cluster."""
    if not all(run.by_task for run in [baseline, *candidates]) or candidates[0].tasks_df <= 0:
        return None
    found: list[float] = []
    for run in candidates:
        by_task = run.task_means - baseline.task_means
        variance = _variance_of_mean(by_task, run.clusters)
        if variance <= 1e-18:  # no task disagrees, by more than rounding
            runs, tasks = [baseline, run], run.tasks_df + 1
            variance = _unanimous(float(by_task.mean()), runs, tasks, alone=baseline.is_level)
        found.append(variance)
    return np.array(found)


def _unanimous(mean: float, runs: Sequence[RunScores], tasks: float, *, alone: bool) -> float:
    """Variance where every task shows the same difference: as if one more task had shown the opposite.

    Equal scores on every task have no task variance. `alone`: the score of a run, or its difference to a fixed level.
    """
    if abs(mean) <= 1e-12 and not alone:
        return 0.0
    values = np.concatenate([run.values.ravel() for run in runs])
    spread = float(values.max() - values.min()) or max(1.0, float(np.abs(values).max()))
    return max(abs(mean), spread) ** 2 / (tasks + 1) / tasks
