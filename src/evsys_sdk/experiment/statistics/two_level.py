"""Differences between runs and a baseline, with task sampling variance and seed variance.

Runs answer the same tasks, so they are compared task by task. For run r with n_r seeds and baseline b:

    SE^2 = V_tasks + s2_r / n_r + s2_b / n_b

    V_tasks   cluster-robust variance of the mean paired difference, over the means of the seeds:
              C / (C - 1) * sum over clusters of (sum over its tasks of (d_t - D))^2 / T^2
    s2_r      seed variance of a run: max(pooled, own variance of the seed means), minus the part explained by answers
              to single tasks, which V_tasks already contains; at least 0

Degrees of freedom follow from Satterthwaite's formula, with C - 1 for the tasks and the pooled seeds for the seeds;
`own_df` uses the seeds of the two runs alone, for the end of the interval that cannot support a claim. An untrained
model (`trained=False`) has no seed variance. A metric without scores by task is compared by the scores of the seeds.
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
    """The scores of one run, by seed and task."""

    values: FloatArray
    """Array of seeds x tasks, with the same order of tasks in every run; one column without scores by task."""
    trained: bool = True
    """False for an untrained model, which has no seeds."""
    is_level: bool = False
    """Whether this is a claimed level instead of a model."""
    clusters: IntArray | None = None
    """Cluster number of each task; None if the tasks are not clustered."""
    seeds: tuple[int, ...] = ()
    """Seeds in the order of the rows; empty if unknown."""
    extremes: Sequence[float] = ()
    """The mean with all missing samples taken as wrong, and as right; empty if none is missing."""

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
    def seed_noise(self) -> SeedNoise | None:
        """Seed noise estimated from this run alone; None for an untrained model or a single seed."""
        if not self.trained or self.n_seeds < 2:
            return None
        return SeedNoise(float(self.seed_means.var(ddof=1)), _variance_by_tasks(self), self.n_seeds - 1)

    @cached_property
    def tasks_df(self) -> float:
        """Degrees of freedom of the task variance: clusters minus one, fewer if their sizes differ."""
        tasks = self.values.shape[1]
        if tasks < 2:
            return 0.0
        if self.clusters is None:
            return float(tasks - 1)
        sizes = np.bincount(self.clusters)
        return max(0.0, tasks**2 / float((sizes.astype(float) ** 2).sum()) - 1)


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """Variance of the seed scores of a run, possibly pooled over runs."""

    between: float
    """Variance of the seed means."""
    explained: float
    """The part explained by the answers to single tasks."""
    df: int

    @property
    def component(self) -> float:
        """The part that all tasks of a seed share."""
        return max(0.0, self.between - self.explained)


@dataclass(frozen=True, slots=True)
class ContrastEstimate:
    """A weighted sum of the scores of runs."""

    value: float
    low: float
    """The lowest value for any result of missing samples."""
    high: float
    stderr: float
    df: float
    own_df: float
    """Degrees of freedom from the seeds of these runs alone; valid also if runs have unequal noise."""
    task_variance: float
    """Task sampling variance."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Each candidate minus the baseline."""

    estimates: Sequence[ContrastEstimate]
    noise: SeedNoise | None
    """None if no run has two seeds; intervals then contain no seed variance."""
    baseline: RunScores
    candidates: Sequence[RunScores]


def seed_noise(runs: Sequence[RunScores]) -> SeedNoise | None:
    """Pool the seed noise of all runs with at least two seeds; None if there is none."""
    known = [one for run in runs if (one := run.seed_noise) is not None]
    df = sum(one.df for one in known)
    if not df:
        return None
    between = sum(one.df * one.between for one in known) / df
    return SeedNoise(between, sum(one.df * one.explained for one in known) / df, df)


def compare(baseline: RunScores, candidates: Sequence[RunScores]) -> Differences | None:
    """Estimate the difference of each candidate to the baseline; None if a variance is unknown."""
    noise = seed_noise([baseline, *candidates])
    found = [one for run in candidates if (one := contrast([baseline, run], [-1.0, 1.0], noise)) is not None]
    return Differences(found, noise, baseline, candidates) if len(found) == len(candidates) else None


def contrast(
    runs: Sequence[RunScores], weights: Sequence[float], noise: SeedNoise | None = None
) -> ContrastEstimate | None:
    """Estimate a weighted sum of the mean scores of runs; None if its variance cannot be estimated.

    `noise` is the seed noise pooled over more runs; by default it is pooled over `runs`.
    """
    noise = noise or seed_noise(runs) or SeedNoise(0.0, 0.0, 0)
    value = float(sum(weight * run.mean for weight, run in zip(weights, runs, strict=True)))
    # A negative weight swaps the ends of a run.
    ends = [[weight * end for end in run.extremes or [run.mean]] for weight, run in zip(weights, runs, strict=True)]
    low, high = min(value, sum(map(min, ends))), max(value, sum(map(max, ends)))
    tasks_df = runs[-1].tasks_df
    tasks = _task_variance(runs, weights) if tasks_df > 0 else 0.0
    shares = [weight**2 / run.n_seeds if run.trained else 0.0 for weight, run in zip(weights, runs, strict=True)]
    of_seeds = [max(one.between for one in (noise, run.seed_noise) if one is not None) for run in runs]
    variance = tasks + sum(max(0.0, own - noise.explained) * share for own, share in zip(of_seeds, shares, strict=True))
    # A variance in the range of rounding errors is zero.
    if math.sqrt(variance) <= 1e-9 * max(float(np.abs(run.values).max()) for run in runs):
        variance = 0.0
    if variance == 0 and tasks_df <= 0:
        return None
    known = max(tasks_df, 1.0)

    def satterthwaite(seeds_df: Sequence[int]) -> float:
        parts = [(share * own) ** 2 / df for share, own, df in zip(shares, of_seeds, seeds_df, strict=True) if df]
        doubt = tasks**2 / known + sum(parts)
        return min(max(variance**2 / doubt if doubt > 0 else 1.0, 1.0), max(known, noise.df))

    df = own_df = known
    if noise.df:
        df, own_df = satterthwaite([noise.df] * len(runs)), satterthwaite([max(run.n_seeds - 1, 1) for run in runs])
    return ContrastEstimate(value, low, high, math.sqrt(variance), df, own_df, tasks)


def _variance_by_tasks(run: RunScores) -> float:
    """The variance of a seed mean that is explained by answers to single tasks."""
    if run.tasks_df <= 0:
        return 0.0
    left = run.values - run.task_means - run.seed_means[:, None] + run.mean
    return _cluster_robust(left, run.clusters) / (run.n_seeds - 1)


def _cluster_robust(deviations: FloatArray, clusters: IntArray | None) -> float:
    """Cluster-robust variance of a mean over tasks, summed over the rows of its deviations."""
    sums = deviations
    if clusters is not None:
        members = np.zeros((len(clusters), int(clusters.max()) + 1))
        members[np.arange(len(clusters)), clusters] = 1.0
        sums = deviations @ members
    count = sums.shape[-1]
    return count / (count - 1) * float((sums**2).sum()) / deviations.shape[-1] ** 2


def _task_variance(runs: Sequence[RunScores], weights: Sequence[float]) -> float:
    """Task sampling variance of a weighted sum.

    If all tasks have the same value, the variance is that with one additional task of the opposite value. It is 0 if
    two runs have equal scores on every task, but not for a single run or its difference to a level.
    """
    by_task = np.asarray(weights) @ np.stack([run.task_means for run in runs])
    mean, tasks = float(by_task.mean()), runs[-1].tasks_df + 1
    variance = _cluster_robust(by_task - mean, runs[-1].clusters)
    if variance > 1e-18:
        return variance
    if abs(mean) <= 1e-12 and sum(not run.is_level for run in runs) > 1:
        return 0.0
    values = np.concatenate([run.values.ravel() for run in runs])
    spread = float(values.max() - values.min()) or max(1.0, float(np.abs(values).max()))
    return max(abs(mean), spread) ** 2 / (tasks + 1) / tasks
