"""What luck alone does to our own statistic: the reference that intervals, p and power are read from.

Student's t is the distribution of a mean over one estimated variance. Ours has two (tasks and seeds), of which one is
cut off at zero and raised for erratic runs, and the largest of several differences is looked at. No table has that
distribution, so it is drawn: worlds without any difference, with as many runs, seeds and clusters of tasks as the
experiment had and the mixture of noise that was found, each put through the same arithmetic.

Three worlds are drawn. In the first all runs are equally noisy; there, the largest difference passes in 2.5 % at most.
In the others the seeds of the baseline, or of a compared run, lie five times as far apart as those of the rest, which
three seeds often do not show; there, it passes in 2.8 % at most. The strictest of them decides. Where a validation set
prefers one run, most of the error rate is spent on that run, whose luck on validation is luck of the same models on
test.

Mixtures are rounded to tenths and draws have a fixed seed, so that the same record always gives the same conclusion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from .student_t import chi2_quantile
from .two_level import Differences
from .worlds import TENTHS, Design, Draws, draw, draw_estimates

ERROR = 0.025
"""How often luck alone may pass, at most, where all runs are equally noisy."""
_ERROR_IF_ERRATIC, _ERROR_IF_ERRATIC_WITH_TWO_SEEDS = 0.028, 0.021
"""How often it may pass where a run is erratic; two seeds hide that so well that less must be aimed at."""
_ERRATIC = 25.0
"""Seed variance of an erratic run, in those of the others."""
_PREFERRED = 0.9
"""Share of the error rate that is spent on the run which validation prefers; it most often sees which one is better."""
_MIDDLE = 0.5
"""What is foretold is so from noise that is as often too high as too low; few seeds most often show too little."""
CAUTIOUS, _CAUTIOUS_IF_ERRATIC = 0.4, 0.5
"""The noise of seeds is taken from the upper part of its own uncertainty: at its mean, few seeds would be too sure."""
_MANY = 9
"""Degrees of freedom from which on the noise of seeds is taken to be known when power is foretold."""
_LEAST_NOISE = 0.1
"""What is left of the noise of a run that solves everything; the next tasks might be harder."""
_HIDING_SEEDS = 2
"""So many seeds may agree by chance so well that nothing is left of the noise."""


@dataclass(frozen=True, slots=True)
class Reference:
    """How large a difference in standard errors must be."""

    design: Design
    error: float = ERROR
    erratic: Design | None = None
    """The same with the noise that an erratic baseline is measured by; less cautious, as it is a worst case anyway."""
    expected: Design | None = None
    """The same with the noise where it is as often too high as too low, for power."""

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
        # Each kind of world by its own allowance, so that p and the interval say the same.
        passes = max(_share_above(drawn, abs(t)) / allowed for drawn, allowed in self._list_tests(which, share))
        return min(1.0, 2 * ERROR * passes)

    def detectable(self, critical: float, *, power: float = 0.8) -> float:
        """The true effect that passes `critical` in this share of worlds, in units of a seed's standard deviation."""
        design = self.expected or self.design
        if _count_df(design) >= _MANY:
            return _detectable(design, round(critical, 3), power)
        which, _ = self._aim(preferred=bool(self.design.validation))
        return _detectable_with_few(replace(design, rough=True), self.error, which == "preferred", power)

    def _aim(self, *, preferred: bool) -> tuple[str, float]:
        """Which drawn statistic counts, and the share of the error rate that is spent on it."""
        if not self.design.validation:
            return "largest", 1.0
        return ("preferred", _PREFERRED) if preferred else ("largest", 1 - _PREFERRED)

    def _quantile(self, which: str, share: float) -> float:
        return max(_upper_quantile(drawn, allowed) for drawn, allowed in self._list_tests(which, share))

    def _list_tests(self, which: str, share: float) -> list[tuple[Draws, float]]:
        """What is drawn in each of the worlds, and how much of it may pass."""
        most, design = _ERROR_IF_ERRATIC, self.erratic or self.design
        # Seeds are sorted, most first: the last run has the fewest.
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
        # In this order, and not in that of the runs, so that equal shapes share their draws.
        seeds=tuple(sorted(differences.seeds, reverse=True)),
        baseline_seeds=differences.baseline_seeds,
        tasks_df=coarse_df(differences.tasks_df),
        lent_df=differences.lent_df,
        paired=differences.noise is not None and differences.noise.paired,
        unseen=unseen,
        # At least a tenth, however small the set is: 0 stands for none.
        validation=min(40, max(1, math.ceil(ratio * TENTHS))) if validation_tasks else 0,
    )
    noise = differences.noise
    if noise is None:
        return Reference(shape, error)
    suiting, shares = variance_of_suiting(differences), typical_share(differences)
    cautious, erratic = (
        mix_noise(shape, raise_noise(noise.between, noise.explained, noise.df, upper), noise.explained, suiting, shares)
        for upper in (CAUTIOUS, caution_if_erratic(differences.baseline_seeds))
    )
    typical = raise_noise(noise.between, noise.explained, noise.df, _MIDDLE)
    return Reference(cautious, error, erratic, mix_noise(shape, typical, noise.explained, suiting, shares))


def detectable_effect(differences: Differences, reference: Reference, critical: float) -> float:
    """The true effect of a typical run that would be seen in 80 % of repetitions."""
    noise = differences.noise
    unit = 0.0
    if noise is not None:
        unit = raise_noise(noise.between, noise.explained, noise.df, _MIDDLE) + noise.explained
    if unit <= 0:  # no seed moved anything: the luck of the tasks is all, and what is mixed with it is a tenth
        unit = float(np.median(differences.task_variance)) / typical_share(differences)
        unit *= 1.0 if noise is None else 1 / TENTHS
    return reference.detectable(critical) * math.sqrt(unit)


def adjust_to_rate(effect: float, rate: float, sign: int, *, trained_baseline: bool) -> float:
    """The effect that is seen where scores are rates: a run that solves nearly all, or nearly nothing, varies less.

    `effect` is what would be seen if a better run were as noisy as the baseline, which scores `rate`. The variance of a
    rate is that of a coin; a baseline that is trained has its share of the noise however good the other run is.
    """
    usual = rate * (1 - rate)
    if usual <= 0 or not 0 < effect < 1:
        return effect

    def falls_short(guess: float) -> bool:
        better = rate + sign * guess
        times = max(_LEAST_NOISE, better * (1 - better) / usual)
        return guess < effect * math.sqrt((1 + times) / 2 if trained_baseline else times)

    low, high = 0.0, 1.0
    # Thirty halvings leave a billionth. There is no formula: the noise depends on the rate that is looked for.
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if falls_short(middle) else (low, middle)
    return low


def coarse_df(df: float) -> int:
    """Degrees of freedom as the reference takes them: what lies beyond a hundred changes nothing that could be seen."""
    if df <= 0:
        return 0
    # Downwards, on the side of wider intervals; a whole number may have come out just below itself.
    whole = max(1, math.floor(df + 1e-9))
    return whole if whole <= 30 else min(whole // 10 * 10, 200)


def mix_noise(design: Design, training: float, answers: float, suiting: float, shares: float) -> Design:
    """A design with its mixture of noise: training among seeds, and the suiting of tasks among all of a difference.

    `shares` is what the seeds of both sides divide by: 1 / seeds + 1 / seeds of the baseline.
    """
    of_seed = training + answers
    if of_seed <= 0:
        return replace(design, seed_share=0, task_share=TENTHS - 1)
    of_all = suiting + of_seed * shares
    return replace(
        design,
        seed_share=round(TENTHS * training / of_seed),
        # Never ten tenths: worlds are drawn in units of the noise of seeds, of which something must be left.
        task_share=min(TENTHS - 1, round(TENTHS * suiting / of_all)),
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


def variance_of_suiting(differences: Differences) -> float:
    """What is left of the variance over tasks when the noise of single answers is taken out."""
    answers = 0.0 if differences.noise is None else differences.noise.explained * typical_share(differences)
    return max(0.0, float(np.median(differences.task_variance)) - answers)


@lru_cache(maxsize=512)
def _worlds(design: Design, baseline_noise: float = 1.0, run_noise: float = 1.0) -> _Worlds:
    difference, stderr, on_validation = draw(design, baseline_noise, run_noise)
    t = difference / stderr
    single = np.sort(t[:, len(design.seeds) - 1])
    if on_validation is None:
        return _Worlds(np.sort(t.max(axis=1)), single, single)
    preferred = np.take_along_axis(t, on_validation.argmax(axis=1)[:, None], axis=1)[:, 0]
    return _Worlds(np.sort(t.max(axis=1)), np.sort(preferred), single)


def _count_df(design: Design) -> int:
    """What the noise of seeds is known from."""
    return sum(count - 1 for count in design.seeds) + max(0, design.baseline_seeds - 1) + design.lent_df


@lru_cache(maxsize=4096)
def _detectable_with_few(design: Design, error: float, preferred: bool, power: float) -> float:
    """The same where few seeds judge the noise anew in each repetition, and with it how wide an interval must be."""
    difference, stderr = _first_run(design)
    criticals = _draw_criticals(design, error, preferred)
    # What a world lacks to pass is the effect that would have made it pass.
    return float(np.quantile(criticals * stderr - difference, power))


def _draw_criticals(design: Design, error: float, preferred: bool) -> Draws:
    """The critical value that each drawn world would have used, by its own estimate of the noise."""
    pooled, answers, tasks = draw_estimates(design)
    df = max(1, _count_df(design))
    shares = 1 / design.seeds[0] + (1 / design.baseline_seeds if design.baseline_seeds else 0.0)
    suiting = np.maximum(0.0, tasks - answers * shares)
    mixtures: list[Draws] = []
    for upper in (CAUTIOUS, caution_if_erratic(design.baseline_seeds)):
        training = np.maximum(0.0, pooled * df / chi2_quantile(upper, df) - answers)
        of_seed = np.maximum(training + answers, 1e-12)
        # Every second tenth is enough here, and makes them few.
        mixtures.append(2 * np.round(TENTHS / 2 * training / of_seed))
        mixtures.append(2 * np.round(TENTHS / 2 * suiting / (suiting + of_seed * shares)))
    kinds, place = np.unique(np.stack(mixtures, axis=1).astype(int), axis=0, return_inverse=True)
    found: list[float] = []
    for seed_share, task_share, erratic_seed, erratic_task in np.minimum(kinds, TENTHS).tolist():
        usual = replace(design, seed_share=seed_share, task_share=min(task_share, TENTHS - 1))
        erratic = replace(design, seed_share=erratic_seed, task_share=min(erratic_task, TENTHS - 1))
        found.append(Reference(usual, error, erratic).critical(preferred=preferred))
    return np.array(found, dtype=np.float32)[place.reshape(-1)]


@lru_cache(maxsize=4096)
def _detectable(design: Design, critical: float, power: float) -> float:
    difference, stderr = _first_run(design)
    return float(np.quantile(critical * stderr - difference, power))


@lru_cache(maxsize=64)
def _first_run(design: Design) -> tuple[Draws, Draws]:
    difference, stderr, _ = draw(design, 1.0, 1.0)
    return difference[:, 0].copy(), stderr[:, 0].copy()


def _upper_quantile(ordered: Draws, above: float) -> float:
    """The value that this share of the sorted draws lies above, between two of them."""
    # By hand, because the draws are in order already: `np.quantile` would look for it among all of them.
    place = (len(ordered) - 1) * (1 - above)
    at = min(int(place), len(ordered) - 2)
    return float(ordered[at] + (place - at) * (ordered[at + 1] - ordered[at]))


def _share_above(ordered: Draws, value: float) -> float:
    # In the type of the draws: for a double, NumPy would first copy all of them to doubles.
    above = len(ordered) - int(np.searchsorted(ordered, np.float32(value)))
    # The value itself counts among the draws: no number of them shows that luck never does it, so p is never 0.
    return (above + 1) / (len(ordered) + 1)
