"""Differences between runs and a baseline, with both kinds of luck in them: the tasks asked and the seeds drawn.

Runs answer the same tasks, so they are compared task by task. That leaves the luck of training: another seed would
have given another model, better or worse on all tasks at once, and no number of tasks shows it. Its variance is
estimated from how far the seeds of a run lie apart, beyond what their answers to finitely many tasks explain:

    Var(difference) = Var_tasks(mean over seeds of run - baseline) + s2_run / seeds + s2_baseline / seeds

Tasks that were made from one template or one document succeed and fail together. Where clusters are known, their sums
take the place of single tasks, so that a thousand tasks from ten documents count as ten:

    Var_tasks = C / (C - 1) * sum over clusters of (sum over its tasks of (d_t - D))^2 / T^2

A few seeds a run say little about s2, so all runs are pooled; a run that looks erratic is charged more (`charges`).
Where all runs were trained with the same seeds and it shows, what a seed does to all of them at once is in no
difference, and is taken out. What a metric cannot say by task, such as a final loss, is compared by its values for each
seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .charges import Spread, charge_run, standard_errors
from .student_t import f_above

type FloatArray = npt.NDArray[np.float64]
type IntArray = npt.NDArray[np.intp]

_FEWEST_TO_PAIR = 4
"""Runs with the same seeds are paired by seed from this many on; for fewer, that would cost too much certainty."""
_SHARED = 0.05
"""How seldom seeds that share nothing may look as much alike as they do."""
_NOISIER = 0.1
"""How seldom seeds that are as noisy as earlier ones may lie as far apart as they do, if those are to be believed."""


@dataclass(frozen=True)
class RunScores:
    """What the seeds of one run scored."""

    values: FloatArray
    """Seeds x tasks, the tasks in the same order in every run; a single column where there are no scores by task."""
    by_task: bool = True
    """Whether a column is a task; else it is the score of the seed."""
    trained: bool = True
    """False for a model as it is, which no seed can change."""
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
        return SeedNoise(self.seed_variance, _variance_by_tasks(_beyond_seed(self)[None], self), self.n_seeds - 1)

    @cached_property
    def tasks_df(self) -> float:
        """What the luck of the tasks is known from: clusters less one, fewer where they differ much in size."""
        tasks = self.values.shape[1]
        if not self.by_task or tasks < 2:
            return 0.0
        if self.clusters is None:
            return float(tasks - 1)
        sizes = np.bincount(self.clusters)
        return max(0.0, tasks**2 / float((sizes.astype(float) ** 2).sum()) - 1)


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """What the choice of a seed does to a score, over all runs."""

    between: float
    """Variance of the scores of the seeds of one run."""
    explained: float
    """The part of it that comes from the answers to single tasks."""
    df: int
    paired: bool = False
    """Whether what a seed does to all runs at once was taken out."""

    @property
    def component(self) -> float:
        """The part that all tasks share: training itself."""
        return max(0.0, self.between - self.explained)


@dataclass(frozen=True, slots=True)
class Differences:
    """Each candidate minus the baseline."""

    estimates: FloatArray
    stderr: FloatArray
    covariance: FloatArray
    """They share the baseline and the tasks, so they err together; here, all runs are equally noisy."""
    df: FloatArray
    task_variance: FloatArray
    """The part of the variance that more tasks would make smaller."""
    noise: SeedNoise | None
    """None where no run has two seeds: then the luck of training is unknown and in no interval."""
    seeds: tuple[int, ...] = ()
    """How many each candidate has."""
    baseline_seeds: int = 0
    """None for a model as it is."""
    tasks_df: float = 0.0
    lent_df: int = 0
    """Degrees of freedom of the noise that come from runs outside the comparison."""


def are_paired(runs: Sequence[RunScores]) -> bool:
    """Whether all trained runs have the same seeds, and the scores show that a seed does much the same to all of them.

    The same number does not make the same luck: recipes that draw differently share nothing by sharing a seed, and
    taking out what they do not share would only cost certainty.
    """
    trained = [run for run in runs if run.trained]
    if len(trained) < _FEWEST_TO_PAIR or trained[0].n_seeds < 2 or len({run.seeds for run in trained}) > 1:
        return False
    if not trained[0].seeds:
        return False
    size, seeds = len(trained), trained[0].n_seeds
    df = (size - 1) * (seeds - 1)
    left = float((_beyond_run_and_seed(trained) ** 2).sum()) / df
    by_seed = size * float(np.stack([run.seed_means for run in trained]).mean(axis=0).var(ddof=1))
    return left > 0 and f_above(by_seed / left, seeds - 1, df) < _SHARED


def seed_noise(runs: Sequence[RunScores], *, lent: Sequence[SeedNoise] = ()) -> SeedNoise | None:
    """Pooled over all runs that have at least two seeds, and what other experiments lend."""
    paired = are_paired(runs)
    found = [_noise_of_pairs([run for run in runs if run.trained])] if paired else [run.seed_noise for run in runs]
    known = [one for one in [*found, *lent] if one is not None]
    df = sum(one.df for one in known)
    if not df:
        return None
    between = sum(one.df * one.between for one in known) / df
    explained = sum(one.df * one.explained for one in known) / df
    return SeedNoise(between, explained, df, paired)


def is_noisier(runs: Sequence[RunScores], earlier: SeedNoise) -> bool:
    """Whether the seeds of these runs lie further apart than earlier ones of other runs, by more than luck explains.

    A recipe may be less stable than what was trained before. Noise that was seen then would make it look certain.
    """
    own = seed_noise(runs)
    usual = max(earlier.between, earlier.explained)  # seeds that agree by chance still gave other answers
    return own is not None and usual > 0 and f_above(own.between / usual, own.df, earlier.df) < _NOISIER


def compare(
    baseline: RunScores, candidates: Sequence[RunScores], *, lent: Sequence[SeedNoise] = ()
) -> Differences | None:
    """All differences at once; None where nothing tells how noisy they are. `lent` is noise of other runs."""
    estimates = np.array([run.mean - baseline.mean for run in candidates])
    noise = seed_noise([baseline, *candidates], lent=lent)
    task_part = _task_covariance(baseline, candidates)
    if noise is None and task_part is None:
        return None
    size = len(candidates)
    tasks = np.zeros((size, size)) if task_part is None else task_part
    spread = _spread(baseline, candidates, lent, noise, tasks, estimates)
    stderr = np.sqrt(np.diag(tasks)) if spread is None else standard_errors(spread).astype(np.float64)
    # What arithmetic leaves over of equal scores is no noise.
    rounding = 1e-9 * max(float(np.abs(run.values).max()) for run in [baseline, *candidates])
    if not np.all(stderr > rounding):
        return None  # seeds that agree to the last digit say nothing about how far another one would lie
    shares = np.array([_seed_share(run) + _seed_share(baseline) for run in candidates])
    df = _degrees_of_freedom(np.diag(tasks), candidates[0].tasks_df, shares, noise)
    return Differences(
        estimates,
        stderr,
        tasks if noise is None else _covariance(tasks, noise.component, baseline, candidates),
        df,
        np.diag(tasks).copy(),
        noise,
        seeds=tuple(run.n_seeds for run in candidates),
        baseline_seeds=baseline.n_seeds if baseline.trained else 0,
        tasks_df=0.0 if task_part is None else candidates[0].tasks_df,
        lent_df=sum(one.df for one in lent),
    )


def _covariance(
    tasks: FloatArray, component: float, baseline: RunScores, candidates: Sequence[RunScores]
) -> FloatArray:
    return tasks + component * (np.diag([_seed_share(run) for run in candidates]) + _seed_share(baseline))


def _spread(
    baseline: RunScores,
    candidates: Sequence[RunScores],
    lent: Sequence[SeedNoise],
    noise: SeedNoise | None,
    tasks: FloatArray,
    estimates: FloatArray,
) -> Spread | None:
    """What the standard errors are made of; None where the noise of seeds is unknown."""
    if noise is None:
        return None
    own = _own_variances([baseline, *candidates], noise)
    others = [(run.n_seeds - 1, each) for run, each in zip(candidates, own[1:], strict=True) if each is not None]
    others += [(one.df, one.between) for one in lent]
    known = sum(df for df, _ in others)
    quiet = sum(df * each for df, each in others) / known if known else noise.between
    size, distance = len(candidates), None
    if size > 1:
        weights = (np.ones((size, size)) - np.eye(size)) / (size - 1)
        # With the noise of the others only: an erratic baseline must not explain its own distance by its own noise.
        covariance = _covariance(tasks, max(0.0, quiet - noise.explained), baseline, candidates)
        variance = np.einsum("ij,jk,ik->i", weights, covariance, weights)
        distance = (weights @ estimates) ** 2 / np.maximum(variance, 1e-300)
    return Spread(
        tasks=np.diag(tasks),
        pooled=np.array(noise.between),
        quiet=np.array(quiet),
        explained=np.array(noise.explained),
        of_runs=np.array([noise.between if each is None else each for each in own[1:]]),
        of_baseline=np.array(noise.between if own[0] is None else own[0]),
        distance=distance,
        shares=np.array([_seed_share(run) for run in candidates]),
        base_share=_seed_share(baseline),
        base_df=0 if own[0] is None else baseline.n_seeds - 1,
        lent=bool(lent),
    )


def run_mean(run: RunScores, noise: SeedNoise | None) -> tuple[float, float] | None:
    """Standard error and degrees of freedom of the score of one run; None where neither tasks nor seeds give one."""
    task_part = _task_covariance(None, [run])
    tasks = 0.0 if task_part is None else float(task_part[0, 0])
    variance = tasks + _seed_part(run, noise, run.seed_variance)
    if variance <= 0:
        return None
    df = _degrees_of_freedom(np.array([tasks]), run.tasks_df, np.array([_seed_share(run)]), noise)
    return math.sqrt(variance), float(df[0])


def contrast(runs: Sequence[RunScores], weights: FloatArray) -> tuple[float, float, float] | None:
    """A weighted sum of the scores of runs, with its standard error and degrees of freedom."""
    noise = seed_noise(runs)
    estimate = float(sum(weight * run.mean for weight, run in zip(weights, runs, strict=True)))
    tasks, tasks_df = 0.0, runs[0].tasks_df
    if all(run.by_task for run in runs) and tasks_df > 0:
        by_task = np.stack([run.task_means for run in runs])
        tasks = float(_covariance_of_means((weights @ by_task)[None, :], runs[0].clusters)[0, 0])
    own = _own_variances(runs, noise)
    seeds = sum(
        float(weight) ** 2 * _seed_part(run, noise, spread)
        for weight, run, spread in zip(weights, runs, own, strict=True)
    )
    if tasks + seeds <= 0:
        return None
    shares = np.array([sum(w**2 * _seed_share(run) for w, run in zip(weights.tolist(), runs, strict=True))])
    df = _degrees_of_freedom(np.array([tasks]), tasks_df, shares, noise)
    return estimate, math.sqrt(tasks + seeds), float(df[0])


def _noise_of_pairs(runs: Sequence[RunScores]) -> SeedNoise:
    """From what is left of each seed of each run beyond the run and what the seed did to all runs."""
    size, seeds = len(runs), runs[0].n_seeds
    df = (size - 1) * (seeds - 1)
    left = _beyond_run_and_seed(runs)
    beyond = np.stack([_beyond_seed(run) for run in runs])
    # The mean over runs was taken out of each of them, which costs one run's worth of freedom.
    explained = _variance_by_tasks(beyond - beyond.mean(axis=0), runs[0]) * size / (size - 1)
    return SeedNoise(float((left**2).sum()) / df, explained, df, paired=True)


def _beyond_run_and_seed(runs: Sequence[RunScores]) -> FloatArray:
    means = np.stack([run.seed_means for run in runs])
    return means - means.mean(axis=1, keepdims=True) - means.mean(axis=0) + means.mean()


def _beyond_seed(run: RunScores) -> FloatArray:
    """What is left of each answer beyond the run's score of the task and the luck of the seed."""
    return run.values - run.task_means - run.seed_means[:, None] + run.mean


def _variance_by_tasks(beyond: FloatArray, like: RunScores) -> float:
    """Variance of a seed's mean that its answers to single tasks explain; `beyond` is runs x seeds x tasks."""
    runs, seeds, tasks = beyond.shape
    if not like.by_task or like.tasks_df <= 0:
        return 0.0
    sums = _cluster_sums(beyond, like.clusters)
    clusters = sums.shape[-1]
    return float((sums**2).sum()) / (runs * (seeds - 1)) * clusters / (clusters - 1) / tasks**2


def _cluster_sums(deviations: FloatArray, clusters: IntArray | None) -> FloatArray:
    if clusters is None:
        return deviations
    members = np.zeros((len(clusters), int(clusters.max()) + 1))
    members[np.arange(len(clusters)), clusters] = 1.0
    return deviations @ members


def _covariance_of_means(by_task: FloatArray, clusters: IntArray | None) -> FloatArray:
    """Of the means over tasks, from how they vary from cluster to cluster."""
    tasks = by_task.shape[1]
    sums = _cluster_sums(by_task - by_task.mean(axis=1, keepdims=True), clusters)
    number = sums.shape[1]
    return number / (number - 1) * (sums @ sums.T) / tasks**2


def _task_covariance(baseline: RunScores | None, candidates: Sequence[RunScores]) -> FloatArray | None:
    """Covariance of the mean differences over the tasks that could have been asked."""
    everyone = [*candidates, *([baseline] if baseline is not None else [])]
    if candidates[0].tasks_df <= 0 or not all(run.by_task for run in everyone):
        return None
    by_task = np.stack([run.task_means for run in candidates])
    if baseline is not None:
        by_task = by_task - baseline.task_means
    covariance = _covariance_of_means(by_task, candidates[0].clusters)
    # Tasks that agree leave no variance but that of rounding.
    for row in np.flatnonzero(np.diag(covariance) <= 1e-18):
        covariance[row, :] = covariance[:, row] = 0.0
        covariance[row, row] = _unanimous(float(by_task[row].mean()), everyone, candidates[0].tasks_df + 1)
    return covariance


def _unanimous(mean: float, runs: Sequence[RunScores], tasks: float) -> float:
    """All tasks agree, which does not mean that the next one would: as if one more had said the opposite."""
    values = np.concatenate([run.values.ravel() for run in runs])
    # Where all scores are equal, nothing shows how far one can move; a rate can move by 1.
    spread = float(values.max() - values.min()) or max(1.0, float(np.abs(values).max()))
    surprise = max(abs(mean), spread)
    return surprise**2 / (tasks + 1) / tasks


def _own_variances(runs: Sequence[RunScores], noise: SeedNoise | None) -> list[float | None]:
    """How far the seeds of each run lie apart by themselves; None where that cannot be told."""
    if noise is None or not noise.paired:
        return [run.seed_variance for run in runs]
    trained = [run for run in runs if run.trained]
    size, seeds = len(trained), trained[0].n_seeds
    left = (_beyond_run_and_seed(trained) ** 2).sum(axis=1) * size / ((size - 1) * (seeds - 1))
    found = iter(left.tolist())
    return [next(found) if run.trained else None for run in runs]


def _seed_share(run: RunScores) -> float:
    return 1 / run.n_seeds if run.trained else 0.0


def _seed_part(run: RunScores, noise: SeedNoise | None, own: float | None) -> float:
    """What the luck of training adds to the variance of a run's score."""
    if noise is None:
        return 0.0
    ratio = np.array(own / noise.between if own is not None and noise.between > 0 else 1.0)
    return max(0.0, float(charge_run(ratio)) * noise.between - noise.explained) * _seed_share(run)


def _degrees_of_freedom(tasks: FloatArray, tasks_df: float, shares: FloatArray, noise: SeedNoise | None) -> FloatArray:
    """Satterthwaite, at the pooled noise: a run that looks erratic must not seem better known for it."""
    known = max(tasks_df, 1.0)
    if noise is None:
        return np.full(len(tasks), known)
    variance = tasks + shares * noise.component
    doubt = tasks**2 / known + (shares * noise.between) ** 2 / noise.df
    most = float(max(known, noise.df))
    return np.clip(np.divide(variance**2, doubt, out=np.ones_like(doubt), where=doubt > 0), 1.0, most)
