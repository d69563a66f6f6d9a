"""What an experiment of a given shape would see, and the shape that sees most: for planning, before and after.

    Prospect(training=..., answers=..., suiting=..., tasks_df=99, candidates=6).detectable(seeds=3)

Power is read from the same drawn worlds as the critical value (`reference`), so that an effect which is said to be
seen in 80 % of repetitions is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from .attempts import FIRST_ERROR
from .reference import (
    CAUTIOUS,
    Reference,
    caution_if_erratic,
    coarse_df,
    mix_noise,
    raise_noise,
    variance_of_suiting,
)
from .two_level import Differences
from .worlds import Design

_SEEDS = (*range(2, 13), 14, 16, 20, 24, 32, 48, 64)
"""Numbers of seeds that are worth proposing."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Where the noise of a difference comes from, as variances."""

    training: float
    """Of a seed's score: the luck of training, which all tasks share."""
    answers: float
    """Of a seed's score: answers to single tasks."""
    suiting: float
    """Of a difference: that recipes suit some tasks more than others."""
    tasks_df: float
    candidates: int = 1
    frozen_baseline: bool = False

    @classmethod
    def of(cls, differences: Differences, *, candidates: int) -> Self | None:
        """From what was seen; None where the noise of seeds is unknown."""
        noise = differences.noise
        if noise is None:
            return None
        return cls(
            training=noise.component,
            answers=noise.explained,
            suiting=variance_of_suiting(differences),
            tasks_df=differences.tasks_df,
            candidates=candidates,
            frozen_baseline=differences.baseline_seeds == 0,
        )

    def detectable(self, seeds: int, baseline_seeds: int | None = None, *, error: float = FIRST_ERROR) -> float:
        """The true effect that is seen in 80 % of experiments with so many seeds a run."""
        unit = max(self.training + self.answers, 1e-300)
        return _detectable(self._reference(seeds, baseline_seeds, error)) * math.sqrt(unit)

    def critical(self, seeds: int, baseline_seeds: int | None = None, *, error: float = FIRST_ERROR) -> float:
        """How many standard errors a difference must lie beyond the limit with so many seeds a run."""
        return _critical(self._reference(seeds, baseline_seeds, error))

    def _reference(self, seeds: int, baseline_seeds: int | None, error: float) -> Reference:
        base = 0 if self.frozen_baseline else baseline_seeds or seeds
        df = max(1, self.candidates * (seeds - 1) + max(base - 1, 0))
        shares = 1 / seeds + (1 / base if base else 0.0)
        between = self.training + self.answers
        shape = Design((seeds,) * self.candidates, base, coarse_df(self.tasks_df), rough=True)
        cautions = (CAUTIOUS, caution_if_erratic(base))
        raised = [raise_noise(between, self.answers, df, upper) for upper in cautions]
        tested, erratic, expected = (
            mix_noise(shape, training, self.answers, self.suiting, shares) for training in (*raised, self.training)
        )
        return Reference(tested, error, erratic, expected)

    def seeds_needed(self, effect: float) -> int | None:
        """Seeds a run that would show `effect` in 80 % of experiments; None where no sensible number does."""
        # More seeds never see less, so the first number that suffices can be searched for by halves.
        at = bisect_left(_SEEDS, True, key=lambda seeds: self.detectable(seeds) <= effect)
        return _SEEDS[at] if at < len(_SEEDS) else None

    def split(self, arms: int) -> tuple[int, int]:
        """Seeds of the baseline and of each candidate that see most for so many arms in all.

        The baseline is in every difference, so it pays to know it better: about sqrt(candidates) times as well.
        """
        plain = max(2, arms // (self.candidates + 1))
        shapes = [(arms - self.candidates * seeds, seeds) for seeds in range(2, plain + 1)]
        possible = [(base, seeds) for base, seeds in shapes if base >= seeds]
        return min(possible, key=lambda one: self.detectable(one[1], one[0]), default=(plain, plain))


@lru_cache(maxsize=4096)
def _detectable(reference: Reference) -> float:
    """In units of a seed's standard deviation."""
    return reference.detectable(_critical(reference))


@lru_cache(maxsize=4096)
def _critical(reference: Reference) -> float:
    return reference.critical()
