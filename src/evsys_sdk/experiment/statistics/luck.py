"""What luck makes of a score: how far it moves with the seed alone, and how much it flatters the best of several."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .student_t import t_quantile
from .two_level import Differences, FloatArray, SeedNoise


@dataclass(frozen=True, slots=True)
class Floor:
    """Two runs of one recipe differ by less than `difference` in 19 of 20 cases, by the choice of seeds alone."""

    seed_sd: float
    difference: float
    df: int


def noise_floor(noise: SeedNoise | None, *, seeds: int) -> Floor | None:
    """From the seeds of all runs; None where nothing varies, which does not mean that nothing would.

    Seeds that agree by chance still gave different answers to single tasks, and that alone moves a score.
    """
    if noise is None:
        return None
    sd = math.sqrt(max(noise.between, noise.explained))
    if sd <= 0:
        return None
    return Floor(sd, t_quantile(0.975, noise.df) * sd * math.sqrt(2 / max(seeds, 1)), noise.df)


# What the best of several runs is really worth: it was chosen for its score, so its score flatters it.


def shrunk(differences: Differences) -> FloatArray:
    """Each difference, pulled towards their mean by the share of their spread that luck explains (empirical Bayes).

    Runs that spread no more than luck would spread them all get the mean. The noise of the baseline moves all of them
    together; it makes none of them the winner and so takes no part. A single difference was not chosen and stays.
    """
    estimates, covariance = differences.estimates, differences.covariance
    size = len(estimates)
    if size < 2:
        return estimates.copy()
    shared = (covariance.sum() - np.trace(covariance)) / (size * (size - 1))
    own = np.clip(np.diag(covariance) - shared, 0.0, None)
    centre = estimates.mean()
    real = max(0.0, float(estimates.var(ddof=1) - own.mean()))
    weight = np.divide(real, real + own, out=np.ones(size), where=real + own > 0)
    return centre + weight * (estimates - centre)
