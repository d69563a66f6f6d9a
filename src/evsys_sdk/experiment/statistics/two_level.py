"""Differences between runs and a baseline, with both kinds of luck in them: the tasks asked and the seeds drawn.

Runs answer the same tasks, so they are compared task by task. That leaves the luck of training: another seed would
have given another model, better or worse on all tasks at once, and no number of tasks shows it. Its variance is
estimated from how far the seeds of a run lie apart, beyond what their answers to finitely many tasks explain:

    Var(difference) = Var_tasks(mean over seeds of run - baseline) / tasks + s2_run / seeds + s2_baseline / seeds

A few seeds a run say little about s2, so all runs are pooled; a run whose own seeds lie further apart than that is
taken at its word. The degrees of freedom (Satterthwaite) come from the seeds as well. What a metric cannot say by
task, such as a final loss, is compared by its values for each seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RunScores:
    """What the seeds of one run scored."""

    values: FloatArray
    """Seeds x tasks, the tasks in the same order in every run; a single column where there are no scores by task."""
    by_task: bool = True
    """Whether a column is a task; else it is the score of the seed."""
    trained: bool = True
    """False for a model as it is, which no seed can change."""

    @property
    def n_seeds(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def seed_means(self) -> FloatArray:
        return self.values.mean(axis=1)

    @property
    def seed_variance(self) -> float | None:
        """How far the seeds lie apart; None where they cannot."""
        return float(self.seed_means.var(ddof=1)) if self.trained and self.n_seeds > 1 else None


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """What the choice of a seed does to a score, over all runs."""

    between: float
    """Variance of the scores of the seeds of one run."""
    explained: float
    """The part of it that comes from the answers to single tasks."""
    df: int

    @property
    def component(self) -> float:
        """The part that all tasks share: training itself."""
        return max(0.0, self.between - self.explained)


@dataclass(frozen=True, slots=True)
class Differences:
    """Each candidate minus the baseline."""

    estimates: FloatArray
    covariance: FloatArray
    """They share the baseline and the tasks, so they err together."""
    df: FloatArray
    task_variance: FloatArray
    """The part of the variance that more tasks would make smaller."""
    noise: SeedNoise | None
    """None where no run has two seeds: then the luck of training is unknown and in no interval."""

    @property
    def stderr(self) -> FloatArray:
        return np.sqrt(np.diag(self.covariance))


def seed_noise(runs: Sequence[RunScores]) -> SeedNoise | None:
    """Pooled over all runs that have at least two seeds."""
    repeated = [run for run in runs if run.trained and run.n_seeds > 1]
    df = sum(run.n_seeds - 1 for run in repeated)
    if not df:
        return None
    between = sum((run.n_seeds - 1) * (run.seed_variance or 0.0) for run in repeated) / df
    explained = sum((run.n_seeds - 1) * _explained_by_tasks(run) for run in repeated) / df
    return SeedNoise(between, explained, df)


def compare(
    baseline: RunScores, candidates: Sequence[RunScores], *, pool: Sequence[RunScores] = ()
) -> Differences | None:
    """All differences at once; None where nothing tells how noisy they are. `pool` lends its seeds to the noise."""
    estimates = np.array([run.mean - baseline.mean for run in candidates])
    noise = seed_noise([baseline, *candidates, *pool])
    task_part = _task_covariance(baseline, candidates)
    if noise is None and task_part is None:
        return None
    size = len(candidates)
    tasks = np.zeros((size, size)) if task_part is None else task_part
    own = np.array([_seed_part(run, noise) for run in candidates])
    covariance = tasks + np.diag(own) + _seed_part(baseline, noise)
    rounding = 1e-9 * max(float(np.abs(run.values).max()) for run in [baseline, *candidates])
    if not np.all(np.diag(covariance) > rounding**2):
        return None  # seeds that agree to the last digit say nothing about how far another one would lie
    shares = np.array([_seed_share(run) + _seed_share(baseline) for run in candidates])
    n_tasks = baseline.values.shape[1]
    df = _degrees_of_freedom(np.diag(tasks), n_tasks, shares, noise)
    return Differences(estimates, covariance, df, np.diag(tasks).copy(), noise)


def run_mean(run: RunScores, noise: SeedNoise | None) -> tuple[float, float] | None:
    """Standard error and degrees of freedom of the score of one run; None where neither tasks nor seeds give one."""
    task_part = _task_covariance(None, [run])
    tasks = 0.0 if task_part is None else float(task_part[0, 0])
    variance = tasks + _seed_part(run, noise)
    if variance <= 0:
        return None
    df = _degrees_of_freedom(np.array([tasks]), run.values.shape[1], np.array([_seed_share(run)]), noise)
    return math.sqrt(variance), float(df[0])


def _explained_by_tasks(run: RunScores) -> float:
    """Variance of a seed's mean that its answers to single tasks explain: what is left of them beyond run and seed."""
    seeds, tasks = run.values.shape
    if not run.by_task or tasks < 2:
        return 0.0
    by_task = run.values.mean(axis=0, keepdims=True)
    left = run.values - by_task - run.seed_means[:, None] + run.mean
    return float((left**2).sum()) / ((seeds - 1) * (tasks - 1)) / tasks


def _task_covariance(baseline: RunScores | None, candidates: Sequence[RunScores]) -> FloatArray | None:
    """Covariance of the mean differences over the tasks that could have been asked."""
    everyone = [*candidates, *([baseline] if baseline is not None else [])]
    tasks = candidates[0].values.shape[1]
    if tasks < 2 or not all(run.by_task for run in everyone):
        return None
    by_task = np.stack([run.values.mean(axis=0) for run in candidates])
    if baseline is not None:
        by_task = by_task - baseline.values.mean(axis=0)
    covariance = np.atleast_2d(np.cov(by_task)) / tasks
    for row in np.flatnonzero(np.diag(covariance) <= 1e-18):
        covariance[row, :] = covariance[:, row] = 0.0
        covariance[row, row] = _unanimous(float(by_task[row].mean()), everyone, tasks)
    return covariance


def _unanimous(mean: float, runs: Sequence[RunScores], tasks: int) -> float:
    """All tasks agree, which does not mean that the next one would: as if one more had said the opposite."""
    values = np.concatenate([run.values.ravel() for run in runs])
    spread = float(values.max() - values.min()) or max(1.0, float(np.abs(values).max()))
    surprise = max(abs(mean), spread)
    return surprise**2 / (tasks + 1) / tasks


def _seed_share(run: RunScores) -> float:
    return 1 / run.n_seeds if run.trained else 0.0


def _seed_part(run: RunScores, noise: SeedNoise | None) -> float:
    """What the luck of training adds to the variance of a run's score."""
    if noise is None:
        return 0.0
    own = 0.0 if run.seed_variance is None else run.seed_variance - _explained_by_tasks(run)
    return max(noise.component, own) * _seed_share(run)


def _degrees_of_freedom(tasks: FloatArray, n_tasks: int, shares: FloatArray, noise: SeedNoise | None) -> FloatArray:
    """Satterthwaite, at the pooled noise: a run that looks erratic must not seem better known for it."""
    if noise is None:
        return np.full(len(tasks), float(max(n_tasks - 1, 1)))
    variance = tasks + shares * noise.component
    doubt = tasks**2 / max(n_tasks - 1, 1) + (shares * noise.between) ** 2 / noise.df
    most = float(max(n_tasks - 1, noise.df))
    return np.clip(np.divide(variance**2, doubt, out=np.ones_like(doubt), where=doubt > 0), 1.0, most)
