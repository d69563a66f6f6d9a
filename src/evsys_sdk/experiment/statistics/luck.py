"""The noise floor: how far a score moves with the seed alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .student_t import t_quantile
from .two_level import SeedNoise


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Two runs of one recipe differ by less than `difference` in 19 of 20 cases, by the choice of seeds alone."""

    seed_sd: float
    difference: float
    df: int = 0


def noise_floor(noise: SeedNoise | None, *, seeds: int) -> NoiseFloor | None:
    """From the seeds of all runs; None where nothing varies, which does not mean that nothing would.

    Seeds that agree by chance still gave different answers to single tasks, and that alone moves a score.
    """
    if noise is None:
        return None
    sd = math.sqrt(max(noise.between, noise.explained))
    if sd <= 0:
        return None
    return NoiseFloor(sd, t_quantile(0.975, noise.df) * sd * math.sqrt(2 / max(seeds, 1)), noise.df)
