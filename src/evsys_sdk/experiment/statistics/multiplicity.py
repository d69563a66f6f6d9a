"""Correction for looking at several differences at once: the largest of many is large by luck alone.

The differences share a baseline and tasks, so they err together, and dividing the error rate by their number would be
stricter than needed. Instead worlds without any difference are drawn with the covariance that was found, and the
largest |t| of each world is kept (max-T). An interval of `critical` standard errors around every difference then
holds for all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .student_t import t_cdf, t_quantile
from .two_level import Differences, FloatArray

_WORLDS, _FEWEST_WORLDS = 20_000, 4_000
_MOST_DRAWS = 1_000_000
"""In all worlds together; more than 50 runs share fewer worlds, so that a thousand still fit into memory."""
_SEED = 20_260_101
"""Fixed, so that the same record always gives the same conclusion."""
_TO_ONE_BASELINE = 0.5
"""Correlation of two differences to the same baseline, when all runs are equally noisy."""


@dataclass(frozen=True, slots=True)
class MaxT:
    """The distribution of the largest |t| where no run differs from the baseline."""

    df: float
    largest: FloatArray | None
    """Sorted, one a world; None for a single difference, which needs no correction."""

    def critical(self, confidence: float = 0.95) -> float:
        """How many standard errors wide an interval is to each side."""
        if self.largest is None:
            return t_quantile((1 + confidence) / 2, self.df)
        return float(np.quantile(self.largest, confidence))

    def p_value(self, t: float) -> float:
        """How often luck alone makes some |t| this large."""
        if self.largest is None:
            return 2 * t_cdf(-abs(t), self.df)
        above = len(self.largest) - int(np.searchsorted(self.largest, abs(t)))
        return (above + 1) / (len(self.largest) + 1)


def max_t(differences: Differences, *, unseen: int = 0) -> MaxT:
    """For all differences together; the fewest degrees of freedom among them count for all.

    `unseen` runs were compared as well and dropped before they had a difference: they err like the others.
    """
    df = float(differences.df.min())
    size = len(differences.estimates) + unseen
    if size == 1:
        return MaxT(df, None)
    stderr = differences.stderr
    correlation = _with_unseen(differences.covariance / np.outer(stderr, stderr), unseen)
    drawn = _independent(size) @ _root(correlation).T
    scale = np.sqrt(np.random.default_rng(_SEED).chisquare(df, len(drawn)) / df)
    return MaxT(df, np.sort(np.abs(drawn).max(axis=1) / scale))


def _with_unseen(correlation: FloatArray, unseen: int) -> FloatArray:
    """The correlations, and those of further runs, which are as alike as the known ones are on average."""
    known = len(correlation)
    usual = (correlation.sum() - known) / (known * (known - 1)) if known > 1 else _TO_ONE_BASELINE
    padded = np.full((known + unseen, known + unseen), usual)
    padded[:known, :known] = correlation
    np.fill_diagonal(padded, 1.0)
    return padded


@lru_cache(maxsize=2)
def _independent(size: int) -> FloatArray:
    worlds = max(_FEWEST_WORLDS, min(_WORLDS, _MOST_DRAWS // size))
    return np.random.default_rng(_SEED + 1).standard_normal((worlds, size))


def _root(correlation: FloatArray) -> FloatArray:
    """A square root that also exists where runs are copies of each other."""
    values, vectors = np.linalg.eigh(correlation)
    return vectors * np.sqrt(np.clip(values, 0.0, None))
