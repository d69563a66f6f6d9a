"""Minimum detectable effect of an experiment, by its numbers of seeds and tasks.

    Prospect(training=..., answers=..., interaction=..., tasks_df=99, candidates=6).detectable(seeds=3)

The standard error is that of `two_level` with equal noise in all runs; an effect of t(1 - error) + t(0.8) standard
errors is detected in 80 % of repetitions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

import numpy as np

from .attempts import FIRST_ERROR
from .student_t import t_quantile
from .two_level import Differences

POWER = 0.8
_SEEDS = (*range(3, 13), 14, 16, 20, 24, 32, 48, 64)
"""Numbers of seeds to propose."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """Variance components of a difference, for planning an experiment."""

    training: float
    """Variance of a seed's score that all of its tasks share."""
    answers: float
    """Variance of a seed's score due to answers to single tasks."""
    interaction: float
    """Run-by-task interaction variance of a difference."""
    tasks_df: float
    candidates: int = 1
    frozen_baseline: bool = False

    @classmethod
    def of(cls, differences: Differences) -> Self | None:
        """Estimate the components from differences; None if the seed variance is unknown."""
        noise, base, candidates = differences.noise, differences.baseline, differences.candidates
        if noise is None:
            return None
        share = float(np.mean([1 / run.n_seeds for run in candidates])) + (1 / base.n_seeds if base.trained else 0.0)
        tasks = float(np.median([one.task_variance for one in differences.estimates]))
        return cls(
            training=noise.component,
            answers=noise.explained,
            interaction=max(0.0, tasks - noise.explained * share),
            tasks_df=candidates[0].tasks_df,
            candidates=len(candidates),
            frozen_baseline=not base.trained,
        )

    def detectable(self, seeds: int, baseline_seeds: int | None = None, *, error: float = FIRST_ERROR) -> float:
        """Minimum detectable effect (80 % power) with this number of seeds per run."""
        stderr, df = self._stderr(seeds, baseline_seeds)
        return (t_quantile(1 - error / self.candidates, df) + t_quantile(POWER, df)) * stderr

    def critical(self, seeds: int, baseline_seeds: int | None = None, *, error: float = FIRST_ERROR) -> float:
        """Critical value: standard errors by which a difference must exceed the limit."""
        return t_quantile(1 - error / self.candidates, self._stderr(seeds, baseline_seeds)[1])

    def _stderr(self, seeds: int, baseline_seeds: int | None) -> tuple[float, float]:
        """Standard error of a difference and its degrees of freedom (Satterthwaite)."""
        base = 0 if self.frozen_baseline else baseline_seeds or seeds
        known = max(1, self.candidates * (seeds - 1) + max(base - 1, 0))
        parts = [1 / seeds, 1 / base if base else 0.0]
        tasks = self.interaction + self.answers * sum(parts)
        variance = tasks + self.training * sum(parts)
        between = self.training + self.answers
        doubt = tasks**2 / max(self.tasks_df, 1.0) + sum((between * part) ** 2 for part in parts) / known
        df = variance**2 / doubt if doubt > 0 else 1.0
        return math.sqrt(variance), min(max(df, 1.0), max(self.tasks_df, known, 1.0))

    def seeds_needed(self, effect: float) -> int | None:
        """Number of seeds per run for 80 % power at `effect`; None if 64 are not enough."""
        at = bisect_left(_SEEDS, True, key=lambda seeds: self.detectable(seeds) <= effect)
        return _SEEDS[at] if at < len(_SEEDS) else None
