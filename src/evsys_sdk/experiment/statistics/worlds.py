"""Worlds without any difference, put through the same arithmetic as an experiment: what `reference` is drawn from.

Everything is in units in which the variance of a seed's score is 1. Draws have a fixed seed, and all mixtures of noise
share those of their shape, so that a mixture costs little more than its arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .charges import Spread, standard_errors

_ALIKE = 0.5
"""Correlation of two differences to one baseline, when all runs are equally noisy."""
_WORLDS, _FEWEST_WORLDS, _MOST_DRAWS = 20_000, 4_000, 1_000_000
_SEED = 20_260_101
TENTHS = 10

type Draws = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Design:
    """Everything the reference depends on."""

    seeds: tuple[int, ...]
    """Of each candidate, most first."""
    baseline_seeds: int = 0
    """0: a model as it is, which has no luck of training."""
    tasks_df: int = 0
    """0: scores have no tasks."""
    lent_df: int = 0
    paired: bool = False
    unseen: int = 0
    """Candidates that a search dropped before they had a difference."""
    seed_share: int = 0
    """Tenths of the variance of a seed's score that training explains; the rest are answers to single tasks."""
    task_share: int = 0
    """Tenths of the variance of a difference that come from recipes suiting some tasks more than others."""
    validation: int = 0
    """0: none. Else tasks of the validation set in tenths of those of the test set, at most 40."""
    rough: bool = False
    """Fewer worlds, for planning."""


def draw(design: Design, baseline_noise: float, run_noise: float) -> tuple[Draws, Draws, Draws | None]:
    """Differences, their standard errors as they would be estimated, and the differences on validation, if there are.

    In units in which the variance of a seed's score is 1.
    """
    draws = _draws(replace(design, seed_share=0, task_share=0, validation=0))
    training, answers = design.seed_share / TENTHS, 1 - design.seed_share / TENTHS
    # Nobody knows how many seeds a dropped run would have had: as many as the run in the middle.
    seeds = np.array([*design.seeds, *[design.seeds[len(design.seeds) // 2]] * design.unseen], dtype=np.float32)
    own, base = 1 / seeds, 1 / design.baseline_seeds if design.baseline_seeds else 0.0
    suiting = design.task_share / TENTHS / (1 - design.task_share / TENTHS) * float(own.mean() + base)
    noisy = np.ones_like(own)
    noisy[0] = run_noise
    luck = draws.luck * np.sqrt(training * noisy * own) - draws.base_luck * math.sqrt(training * baseline_noise * base)
    noise = draws.answers * np.sqrt(answers * own) - draws.base_answers * math.sqrt(answers * base)
    suited = draws.suited * math.sqrt(suiting)
    difference = luck + noise + suited
    pooled, quiet, of_runs, of_baseline = _seed_variances(
        design, draws, training * baseline_noise + answers, training * run_noise + answers
    )
    by_task = (suiting + answers * (own + base)) * draws.tasks if design.tasks_df else np.zeros_like(difference)
    unseen = np.repeat(pooled[:, None], design.unseen, axis=1)
    spread = Spread(
        tasks=by_task,
        pooled=pooled,
        quiet=quiet,
        explained=answers * draws.explained,
        of_runs=np.concatenate([of_runs, unseen], axis=1),
        of_baseline=of_baseline,
        distance=None,
        shares=own,
        base_share=base,
        base_df=max(0, design.baseline_seeds - 1),
        lent=design.lent_df > 0,
    )
    if len(design.seeds) > 1:
        spread = replace(spread, distance=_distances(design, draws, spread, difference, answers, suiting))
    stderr = np.maximum(standard_errors(spread), 1e-6)
    if not design.validation:
        return difference, stderr, None
    ratio = math.sqrt(TENTHS / design.validation)
    elsewhere = draws.answers_elsewhere * np.sqrt(answers * own + suiting * (1 - _ALIKE)) * ratio
    return difference, stderr, luck + elsewhere


def draw_estimates(design: Design) -> tuple[Draws, Draws, Draws]:
    """What an experiment would estimate: variance of seeds, the part that answers explain, and that of tasks."""
    draws = _draws(replace(design, seed_share=0, task_share=0, validation=0))
    answers = 1 - design.seed_share / TENTHS
    share = 1 / design.seeds[0] + (1 / design.baseline_seeds if design.baseline_seeds else 0.0)
    suiting = design.task_share / TENTHS / (1 - design.task_share / TENTHS) * share
    pooled = _seed_variances(design, draws, 1.0, 1.0)[0]
    return pooled, answers * draws.explained, (suiting + answers * share) * draws.tasks[:, 0]


def _distances(
    design: Design, draws: _Draws, spread: Spread, difference: Draws, answers: float, suiting: float
) -> Draws:
    """Squared distance of the baseline from the other runs, in what luck explains, as it would be estimated."""
    size = len(design.seeds)
    seen, others = difference[:, :size], np.full(difference.shape[1], size, dtype=np.float32)
    others[:size] -= 1
    total = np.repeat(seen.sum(axis=1, keepdims=True), len(others), axis=1)
    total[:, :size] -= seen
    shares = float(spread.shares[:size].mean()) / others + spread.base_share
    variance = np.maximum(spread.quiet - spread.explained, 0.0)[:, None] * shares
    if design.tasks_df:
        of_tasks = suiting * (_ALIKE + (1 - _ALIKE) / others) + answers * shares
        # As estimated from another run: the compared one is not among those that the baseline is measured by.
        variance = variance + of_tasks * np.roll(draws.tasks, 1, axis=1)
    return (total / others) ** 2 / np.maximum(variance, 1e-12)


def _seed_variances(
    design: Design, draws: _Draws, of_base: float, of_first: float
) -> tuple[Draws, Draws, Draws, Draws]:
    """Variance of seeds as it would be estimated: of all, of all but the baseline, of each run, of the baseline."""
    size = len(design.seeds)
    if design.paired and draws.deviations is not None:
        left = draws.deviations.copy()
        left[:, size:] *= math.sqrt(of_base)
        left[:, 0] *= math.sqrt(of_first)
        runs, seeds = left.shape[1:]
        left -= left.mean(axis=2, keepdims=True)
        left -= left.mean(axis=1, keepdims=True)
        own = (left**2).sum(axis=2) * runs / ((runs - 1) * (seeds - 1))
        # Runs and seeds were both taken out, so that all runs together have this freedom and each an equal part of it.
        df = np.full(runs, (runs - 1) * (seeds - 1) / runs)
    else:
        scale = np.ones(draws.between.shape[1], dtype=np.float32)
        scale[0], scale[size:] = of_first, of_base
        own = draws.between * scale
        df = np.array([*(count - 1 for count in design.seeds), *([design.baseline_seeds - 1] * (len(scale) - size))])
    lent = draws.lent * design.lent_df
    known, known_of_runs = float(df.sum()) + design.lent_df, float(df[:size].sum()) + design.lent_df
    if known <= 0:
        nothing = np.ones(len(own), dtype=np.float32)
        return nothing, nothing, np.ones((len(own), size), dtype=np.float32), nothing
    pooled = np.maximum((own @ df + lent) / known, 1e-12)
    quiet = np.maximum((own[:, :size] @ df[:size] + lent) / known_of_runs, 1e-12) if known_of_runs > 0 else pooled
    single = np.array([count < 2 for count in design.seeds])
    of_runs = np.where(single, pooled[:, None], own[:, :size])
    of_baseline = own[:, size] if own.shape[1] > size and design.baseline_seeds > 1 else pooled
    found = [each.astype(np.float32) for each in (pooled, quiet, of_runs, of_baseline)]
    return found[0], found[1], found[2], found[3]


@dataclass(frozen=True, slots=True)
class _Draws:
    """Standard noise of every kind, which all mixtures of one shape share."""

    luck: Draws
    base_luck: Draws
    answers: Draws
    base_answers: Draws
    answers_elsewhere: Draws
    suited: Draws
    between: Draws
    """Chi-square over its degrees of freedom: candidates, then the baseline."""
    deviations: Draws | None
    """The seeds themselves, where they are paired."""
    lent: Draws
    explained: Draws
    tasks: Draws


# Only a few: with many runs, one of them takes tens of megabytes.
@lru_cache(maxsize=12)
def _draws(design: Design) -> _Draws:
    random = np.random.default_rng(_SEED)
    size, runs = len(design.seeds) + design.unseen, len(design.seeds) + (design.baseline_seeds > 0)
    worlds = _FEWEST_WORLDS if design.rough else max(_FEWEST_WORLDS, min(_WORLDS, _MOST_DRAWS // size))

    def normal(*shape: int) -> Draws:
        return random.standard_normal((worlds, *shape), dtype=np.float32)

    def chi2(df: npt.ArrayLike, *shape: int) -> Draws:
        known = np.maximum(np.asarray(df, dtype=float), 1e-9)
        return (random.chisquare(known, (worlds, *shape)) / known).astype(np.float32)

    # The order of what is drawn from here on is part of every conclusion on record: something new is drawn last.
    counts = [*design.seeds, *([design.baseline_seeds] if design.baseline_seeds else [])]
    free = max(1, sum(count - 1 for count in counts))
    common, own = normal(1), normal(size)
    return _Draws(
        luck=normal(size),
        base_luck=normal(1),
        answers=normal(size),
        base_answers=normal(1),
        answers_elsewhere=normal(size),
        suited=math.sqrt(_ALIKE) * common + math.sqrt(1 - _ALIKE) * own,
        between=chi2([max(count - 1, 0) for count in counts], runs),
        deviations=normal(runs, design.seeds[0]) if design.paired else None,
        lent=chi2(max(design.lent_df, 1)),
        explained=chi2(free * max(design.tasks_df, 1)),
        tasks=chi2(max(design.tasks_df, 1), size),
    )
