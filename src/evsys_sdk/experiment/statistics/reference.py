"""What luck alone does to our own statistic: the reference that intervals, p and power are read from.

Student's t is the distribution of a mean over one estimated variance. Ours has two (tasks and seeds), of which one is
cut off at zero and raised for erratic runs, and the largest of several differences is looked at. No table has that
distribution, so it is drawn: worlds without any difference, with as many runs, seeds and clusters of tasks as the
experiment had and the mixture of noise that was found, each put through the same arithmetic.

Three worlds are drawn. In the first all runs are equally noisy; there, the largest difference passes in 2.5 % at most.
In the others the seeds of the baseline, or of a compared run, lie five times as far apart as those of the rest, which
three seeds often do not show; there, it passes in 3 % at most. The strictest of them decides. Where a validation set
prefers one run, most of the error rate is spent on that run, whose luck on validation is luck of the same models on
test.

Mixtures are rounded to tenths and draws have a fixed seed, so that the same record always gives the same conclusion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .charges import Spread, standard_errors
from .student_t import chi2_quantile
from .two_level import Differences

ERROR = 0.025
"""How often luck alone may pass, at most, where all runs are equally noisy."""
_ERROR_IF_ERRATIC, _ERROR_IF_ERRATIC_WITH_TWO_SEEDS = 0.03, 0.021
"""How often it may pass where a run is erratic; two seeds hide that so well that less must be aimed at."""
_ERRATIC = 25.0
"""Seed variance of an erratic run, in those of the others."""
_PREFERRED = 0.8
"""Share of the error rate that is spent on the run which validation prefers."""
CAUTIOUS, _CAUTIOUS_IF_ERRATIC = 0.4, 0.5
"""The noise of seeds is taken from the upper part of its own uncertainty: at its mean, few seeds would be too sure."""
_HIDING_SEEDS = 2
"""So many seeds may agree by chance so well that nothing is left of the noise."""
_ALIKE = 0.5
"""Correlation of two differences to one baseline, when all runs are equally noisy."""
_WORLDS, _FEWEST_WORLDS, _MOST_DRAWS = 20_000, 4_000, 1_000_000
_SEED = 20_260_101
_TENTHS = 10

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


@dataclass(frozen=True, slots=True)
class Reference:
    """How large a difference in standard errors must be."""

    design: Design
    error: float = ERROR
    erratic: Design | None = None
    """The same with the noise that an erratic baseline is measured by; less cautious, as it is a worst case anyway."""
    expected: Design | None = None
    """The same with the noise at its mean, for power."""

    def critical(self, *, preferred: bool = False) -> float:
        """How many standard errors wide an interval is to each side, for all compared runs together."""
        which, share = self._aim(preferred=preferred)
        return self._quantile(which, share)

    @property
    def plain(self) -> float:
        """The same for one comparison alone."""
        return self._quantile("single", 1.0)

    def p_value(self, t: float, *, preferred: bool = False) -> float:
        """How often luck alone makes a difference this large; 0.05 where the interval just excludes zero."""
        which, share = self._aim(preferred=preferred)
        passes = max(_share_above(drawn, abs(t)) / allowed for drawn, allowed in self._tested(which, share))
        return min(1.0, 2 * ERROR * passes)

    def detectable(self, critical: float, *, power: float = 0.8) -> float:
        """The true effect that passes `critical` in this share of worlds, in units of a seed's standard deviation."""
        return _detectable(self.expected or self.design, round(critical, 3), power)

    def _aim(self, *, preferred: bool) -> tuple[str, float]:
        """Which drawn statistic counts, and the share of the error rate that is spent on it."""
        if not self.design.validation:
            return "largest", 1.0
        return ("preferred", _PREFERRED) if preferred else ("largest", 1 - _PREFERRED)

    def _quantile(self, which: str, share: float) -> float:
        return max(_upper_quantile(drawn, allowed) for drawn, allowed in self._tested(which, share))

    def _tested(self, which: str, share: float) -> list[tuple[Draws, float]]:
        """What is drawn in each of the worlds, and how much of it may pass."""
        most, design = _ERROR_IF_ERRATIC, self.erratic or self.design
        if _HIDING_SEEDS in (self.design.baseline_seeds, self.design.seeds[-1]):
            most = _ERROR_IF_ERRATIC_WITH_TWO_SEEDS
        usual, feared = self.error * share, self.error * share * most / ERROR
        worlds = [(_worlds(self.design), usual), (_worlds(design, 1.0, _ERRATIC), feared)]
        if self.design.baseline_seeds:
            worlds.append((_worlds(design, _ERRATIC), feared))
        return [(getattr(drawn, which), allowed) for drawn, allowed in worlds]


@dataclass(frozen=True, slots=True)
class _Worlds:
    """Sorted, one number for each drawn world: the difference of a run in standard errors."""

    largest: Draws
    preferred: Draws
    """Of the run that validation prefers."""
    single: Draws
    """Of one run that nothing chose."""


def reference_of(
    differences: Differences, *, unseen: int = 0, validation_tasks: float = 0.0, error: float = ERROR
) -> Reference:
    """The reference of an experiment; `validation_tasks` are those of a set of its own that chose among the runs."""
    ratio = validation_tasks / differences.tasks_df if differences.tasks_df else 1.0
    shape = Design(
        seeds=tuple(sorted(differences.seeds, reverse=True)),
        baseline_seeds=differences.baseline_seeds,
        tasks_df=coarse_df(differences.tasks_df),
        lent_df=differences.lent_df,
        paired=differences.noise is not None and differences.noise.paired,
        unseen=unseen,
        validation=min(40, max(1, math.ceil(ratio * _TENTHS))) if validation_tasks else 0,
    )
    noise = differences.noise
    if noise is None:
        return Reference(shape, error)
    suiting, shares = suiting_variance(differences), typical_share(differences)
    cautious, erratic = (
        mixed(shape, raise_noise(noise.between, noise.explained, noise.df, upper), noise.explained, suiting, shares)
        for upper in (CAUTIOUS, caution_if_erratic(differences.baseline_seeds))
    )
    return Reference(cautious, error, erratic, mixed(shape, noise.component, noise.explained, suiting, shares))


def detectable_effect(differences: Differences, reference: Reference, critical: float) -> float:
    """The true effect of a typical run that would be seen in 80 % of repetitions."""
    noise = differences.noise
    if noise is None:
        unit = float(np.median(differences.task_variance)) / typical_share(differences)
    else:
        unit = max(noise.component + noise.explained, 1e-300)
    return reference.detectable(critical) * math.sqrt(unit)


def coarse_df(df: float) -> int:
    """Degrees of freedom as the reference takes them: what lies beyond a hundred changes nothing that could be seen."""
    if df <= 0:
        return 0
    whole = max(1, math.floor(df + 1e-9))
    return whole if whole <= 30 else min(whole // 10 * 10, 200)


def mixed(design: Design, training: float, answers: float, suiting: float, shares: float) -> Design:
    """A design with its mixture of noise: training among seeds, and the suiting of tasks among all of a difference.

    `shares` is what the seeds of both sides divide by: 1 / seeds + 1 / seeds of the baseline.
    """
    of_seed = training + answers
    if of_seed <= 0:
        return replace(design, seed_share=0, task_share=_TENTHS - 1)
    of_all = suiting + of_seed * shares
    return replace(
        design,
        seed_share=round(_TENTHS * training / of_seed),
        task_share=min(_TENTHS - 1, round(_TENTHS * suiting / of_all)),
    )


def raise_noise(between: float, answers: float, df: float, upper: float) -> float:
    """The luck of training from the upper part of what `df` degrees of freedom leave open."""
    return max(0.0, between * df / chi2_quantile(upper, df) - answers)


def caution_if_erratic(baseline_seeds: int) -> float:
    """Where in its uncertainty the noise is taken from for an erratic run."""
    return _CAUTIOUS_IF_ERRATIC if baseline_seeds > _HIDING_SEEDS else CAUTIOUS


def typical_share(differences: Differences) -> float:
    """What the seeds of a typical run and of the baseline divide by."""
    own = float(np.mean([1 / count for count in differences.seeds]))
    return own + (1 / differences.baseline_seeds if differences.baseline_seeds else 0.0)


def suiting_variance(differences: Differences) -> float:
    """What is left of the variance over tasks when the noise of single answers is taken out."""
    answers = 0.0 if differences.noise is None else differences.noise.explained * typical_share(differences)
    return max(0.0, float(np.median(differences.task_variance)) - answers)


@lru_cache(maxsize=512)
def _worlds(design: Design, baseline_noise: float = 1.0, run_noise: float = 1.0) -> _Worlds:
    difference, stderr, on_validation = _draw(design, baseline_noise, run_noise)
    t = difference / stderr
    single = np.sort(t[:, len(design.seeds) - 1])
    if on_validation is None:
        return _Worlds(np.sort(t.max(axis=1)), single, single)
    preferred = np.take_along_axis(t, on_validation.argmax(axis=1)[:, None], axis=1)[:, 0]
    return _Worlds(np.sort(t.max(axis=1)), np.sort(preferred), single)


@lru_cache(maxsize=4096)
def _detectable(design: Design, critical: float, power: float) -> float:
    difference, stderr, _ = _draw(design, 1.0, 1.0)
    return float(np.quantile(critical * stderr[:, 0] - difference[:, 0], power))


def _draw(design: Design, baseline_noise: float, run_noise: float) -> tuple[Draws, Draws, Draws | None]:
    """Differences, their standard errors as they would be estimated, and the differences on validation, if there are.

    In units in which the variance of a seed's score is 1.
    """
    draws = _draws(replace(design, seed_share=0, task_share=0, validation=0))
    training, answers = design.seed_share / _TENTHS, 1 - design.seed_share / _TENTHS
    seeds = np.array([*design.seeds, *[design.seeds[len(design.seeds) // 2]] * design.unseen], dtype=np.float32)
    own, base = 1 / seeds, 1 / design.baseline_seeds if design.baseline_seeds else 0.0
    suiting = design.task_share / _TENTHS / (1 - design.task_share / _TENTHS) * float(own.mean() + base)
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
    ratio = math.sqrt(_TENTHS / design.validation)
    elsewhere = draws.answers_elsewhere * np.sqrt(answers * own + suiting * (1 - _ALIKE)) * ratio
    return difference, stderr, luck + elsewhere


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


def _upper_quantile(ordered: Draws, above: float) -> float:
    """The value that this share of the sorted draws lies above, between two of them."""
    place = (len(ordered) - 1) * (1 - above)
    at = min(int(place), len(ordered) - 2)
    return float(ordered[at] + (place - at) * (ordered[at + 1] - ordered[at]))


def _share_above(ordered: Draws, value: float) -> float:
    above = len(ordered) - int(np.searchsorted(ordered, np.float32(value)))
    return (above + 1) / (len(ordered) + 1)
