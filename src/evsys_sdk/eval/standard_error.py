"""How sure a score is. Tasks are what was drawn, so they are the clusters; samples of one task are not independent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

_MOST_GROUPS = 200


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
