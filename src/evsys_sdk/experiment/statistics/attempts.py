"""Error rates across repeated trials of one claim, and across interim analyses of one trial.

Most claims have one trial, so the first trial gets most of the error rate. Each later trial gets a smaller share of the
rest, so that the false positive rate of all trials together is at most 2 %:

    attempt_error(1) = 3/4 * 0.02 = 0.015
    attempt_error(j) = 1/4 * 0.02 * 6 / (pi^2 * (j - 1)^2)

If seeds are added to a trial until it is decided, its interim analyses share the error rate by O'Brien-Fleming
spending: almost nothing at few seeds, almost all at the end.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

ERROR = 0.02
"""False positive rate over all trials of one claim, if runs have equal noise."""
_FIRST = 0.75
"""Share of the error rate for the first trial; the others share the rest."""
_NORMAL = NormalDist()
_GRID = 0.01
"""Grid step of the numerical integration, in standard deviations."""
_REACH = 8.0


def attempt_error(attempt: int, error: float = ERROR) -> float:
    """False positive rate of trial number `attempt` (from 1)."""
    if attempt == 1:
        return _FIRST * error
    return (1 - _FIRST) * error * 6 / (math.pi * (attempt - 1)) ** 2


FIRST_ERROR = attempt_error(1)
"""Error rate for the planning of an experiment."""


def spent_error(fraction: float, error: float = ERROR) -> float:
    """Cumulative error rate spent at this fraction of the evidence (O'Brien-Fleming, one-sided)."""
    return 2 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - error / 2) / math.sqrt(fraction)))


@lru_cache(maxsize=64)
def look_errors(fractions: tuple[float, ...], error: float = ERROR) -> tuple[float, ...]:
    """The nominal error rate of each interim analysis, so that all of them together keep to `error`.

    Each analysis contains the evidence of the earlier ones. The distribution of the undecided cases is propagated from
    one analysis to the next by numerical integration.
    """
    edges = np.arange(-_REACH, _REACH + _GRID / 2, _GRID)
    found: list[float] = []
    before, spent = 0.0, 0.0
    undecided = np.zeros_like(edges)
    for at, fraction in enumerate(fractions):
        allowed = spent_error(fraction, error) - spent
        step = math.sqrt(fraction - before)
        # On the scale of the cumulative sum: z-scores times the square root of the fraction.
        here = edges * math.sqrt(fraction)
        if at == 0:
            density = np.exp(-((here / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        else:
            places = edges * math.sqrt(before)
            away = (here[:, None] - places[None, :]) / step
            width = places[1] - places[0]
            density = (np.exp(-(away**2) / 2) @ undecided) * width / (step * math.sqrt(2 * math.pi))
        mass = density * (here[1] - here[0])
        # Subtract half a cell, because half of its mass lies below its centre.
        above = np.cumsum(mass[::-1])[::-1] - mass / 2
        # Negated, because `searchsorted` needs an ascending array.
        bound = int(np.searchsorted(-above, -allowed))
        z = _REACH  # the error rate of a very early analysis is too small for any decision
        if 0 < bound < len(edges):
            z = float(np.interp(allowed, above[[bound, bound - 1]], edges[[bound, bound - 1]]))
        found.append(1 - _NORMAL.cdf(z))
        undecided = np.where(edges < z, density, 0.0)
        before, spent = fraction, spent + allowed
    return tuple(found)
