"""How much a score moves when nothing changes, and the smallest effect that would have been seen through it."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from .student_t import t_quantile
from .two_level import RunScores, SeedNoise

_POWER = 0.8
_MOST_SEEDS = 100


@dataclass(frozen=True, slots=True)
class Floor:
    """Two runs of one recipe differ by less than `difference` in 19 of 20 cases, by the choice of seeds alone."""

    seed_sd: float
    difference: float
    df: int
    of_baseline: bool
    """Whether it was measured on the baseline's own seeds; else on those of all runs."""


def noise_floor(baseline: RunScores | None, pooled: SeedNoise | None, *, seeds: int) -> Floor | None:
    """From the seeds of the baseline, which are repetitions of one recipe; from those of all runs if it has too few."""
    own = baseline.seed_variance if baseline is not None else None
    if own is not None and baseline is not None:
        variance, df, of_baseline = own, baseline.n_seeds - 1, True
    elif pooled is not None:
        variance, df, of_baseline = pooled.between, pooled.df, False
    else:
        return None
    sd = math.sqrt(variance)
    return Floor(sd, t_quantile(0.975, df) * sd * math.sqrt(2 / max(seeds, 1)), df, of_baseline)


def smallest_detectable(stderr: float, critical: float, df: float) -> float:
    """The true effect whose interval would exclude zero in 80 % of repetitions."""
    return (critical + t_quantile(_POWER, df)) * stderr


@dataclass(frozen=True, slots=True)
class Plan:
    """What a repetition with another number of seeds is planned from."""

    task_variance: float
    """Of the difference, as it was found."""
    seeds_now: float
    """Seeds a run, as an average that counts for the variance."""
    noise: SeedNoise
    runs: int
    """How many runs lend their seeds to the noise."""
    critical_now: float
    df_now: float
    frozen_baseline: bool = False

    def detectable(self, seeds: int) -> float:
        """The smallest detectable effect with this many seeds a run."""
        sides = 1 if self.frozen_baseline else 2
        answers_now = sides / self.seeds_now * self.noise.explained
        tasks = max(0.0, self.task_variance - answers_now)
        variance = tasks + sides / seeds * (self.noise.component + self.noise.explained)
        df = max(1.0, float(self.runs * (seeds - 1)))
        # The correction for several runs widens an interval by about the same share at any df.
        widening = self.critical_now / t_quantile(0.975, self.df_now)
        return smallest_detectable(math.sqrt(variance), widening * t_quantile(0.975, df), df)

    def seeds_needed(self, effect: float) -> int | None:
        """Seeds a run that would show `effect` in 80 % of repetitions; None where no sensible number does."""
        candidates = range(2, _MOST_SEEDS + 1)
        # More seeds never see less, so the first number that suffices can be searched for by halves.
        at = bisect_left(candidates, True, key=lambda seeds: self.detectable(seeds) <= effect)
        return candidates[at] if at < len(candidates) else None
