"""How sure a score is. Tasks are what was drawn, so they are the clusters; samples of one task are not independent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

_MOST_GROUPS = 200
_Z = 1.959964


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval (Wilson's, by tasks) of a mean of values between 0 and 1; None for values of any other kind.

    It is honest also where all tasks agree and the standard error is 0. Values between 0 and 1 vary at most as much as
    zeros and ones of the same mean, so it is never too narrow.
    """
    n = len(values)
    if n == 0 or not all(0 <= value <= 1 for value in values):
        return None
    mean = statistics.fmean(values)
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + _Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def stderr_of_mean(values: Sequence[float]) -> float | None:
    """Standard error of the mean of one value per task; None for a single task, which says nothing about others."""
    return None if len(values) < 2 else statistics.stdev(values) / math.sqrt(len(values))


def jackknife_stderr[T](statistic: Callable[[Sequence[T]], float], tasks: Sequence[T]) -> float | None:
    """Standard error of any smooth statistic, from how it changes when tasks are left out.

    For a mean it equals `stderr_of_mean`. Many tasks are left out in groups, which costs little precision. None where
    it cannot be known: a single task, or a statistic that has no value without some of the tasks.
    """
    groups = min(len(tasks), _MOST_GROUPS)
    if groups < 2:
        return None
    try:
        left = [statistic([task for at, task in enumerate(tasks) if at % groups != group]) for group in range(groups)]
    except (ValueError, ArithmeticError, IndexError):
        return None
    if not all(math.isfinite(value) for value in left):
        return None
    return math.sqrt((groups - 1) / groups * sum((value - statistics.fmean(left)) ** 2 for value in left))
