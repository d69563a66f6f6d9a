"""Error rates across repeated trials of one claim, and across interim analyses of one trial.

Most claims are tried once, so the first attempt gets most of the error rate. Every later one with fresh runs gets a
share of the rest that shrinks with its number, so that all trials together, however many, err in 2 % at most:

    attempt_error(1) = 3/4 * 0.02 = 0.015
    attempt_error(j) = 1/4 * 0.02 * 6 / (pi^2 * (j - 1)^2)

Seeds that are added to one attempt until it is decided are looks at growing evidence. They spend the error rate as
O'Brien and Fleming do: next to nothing while there are few seeds, nearly all of it at the end.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

ERROR = 0.02
"""False positive rate of all trials of one claim together, where runs are equally noisy."""
_FIRST = 0.75
"""Share of the error rate that the first attempt gets; all others share the rest."""
_NORMAL = NormalDist()
_GRID = 0.01
"""Step of the integration over what was seen so far, in standard deviations."""
_REACH = 8.0


def attempt_error(attempt: int, error: float = ERROR) -> float:
    """False positive rate of trial number `attempt` (from 1)."""
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, and this is {attempt}")
    if attempt == 1:
        return _FIRST * error
    return (1 - _FIRST) * error * 6 / (math.pi * (attempt - 1)) ** 2


FIRST_ERROR = attempt_error(1)
"""What an experiment that is planned may count on."""


def spent_error(fraction: float, error: float = ERROR) -> float:
    """How much of the error rate is spent when this fraction of the evidence is in (O'Brien, Fleming; one-sided)."""
    if not 0 < fraction <= 1:
        raise ValueError(f"a fraction of the evidence lies above 0 and is 1 at most, not {fraction}")
    return 2 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - error / 2) / math.sqrt(fraction)))


@lru_cache(maxsize=64)
def look_errors(fractions: tuple[float, ...], error: float = ERROR) -> tuple[float, ...]:
    """The error rate at which each look is tested by itself, so that all together spend what they may.

    Looks see the same evidence again and more, so that most of what a late look finds was in no earlier one; a
    distribution of what has not been decided yet is carried from look to look.
    """
    edges = np.arange(-_REACH, _REACH + _GRID / 2, _GRID)
    found: list[float] = []
    before, spent = 0.0, 0.0
    undecided = np.zeros_like(edges)
    for at, fraction in enumerate(fractions):
        if fraction <= before:
            raise ValueError(f"fractions of the evidence must grow, and {fraction} follows {before}")
        allowed = spent_error(fraction, error) - spent
        step = math.sqrt(fraction - before)
        # On the scale of a sum of evidence, `edges` times the square root of the fraction seen so far.
        here = edges * math.sqrt(fraction)
        if at == 0:
            density = np.exp(-((here / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        else:
            density = _carry(edges * math.sqrt(before), undecided, here, step)
        mass = density * (here[1] - here[0])
        # Half of a cell's own mass lies below its centre: with all of it, every bound would be half a step too high.
        above = np.cumsum(mass[::-1])[::-1] - mass / 2
        # Turned round, because `searchsorted` takes only what rises.
        bound = int(np.searchsorted(-above, -allowed))
        z = _REACH  # a look so early that next to nothing may be spent decides nothing
        if 0 < bound < len(edges):
            z = float(np.interp(allowed, above[[bound, bound - 1]], edges[[bound, bound - 1]]))
        found.append(1 - _NORMAL.cdf(z))
        undecided = np.where(edges < z, density, 0.0)
        before, spent = fraction, spent + allowed
    return tuple(found)


def _carry(places: np.ndarray, density: np.ndarray, here: np.ndarray, step: float) -> np.ndarray:
    width = places[1] - places[0]
    away = (here[:, None] - places[None, :]) / step
    return (np.exp(-(away**2) / 2) @ density) * width / (step * math.sqrt(2 * math.pi))
