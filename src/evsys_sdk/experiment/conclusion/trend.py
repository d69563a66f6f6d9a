"""A trend over an axis: the slope of a straight line through the scores of all runs, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..hypothesis import Claim
from ..statistics.student_t import t_quantile
from ..statistics.two_level import FloatArray, contrast
from .evidence import Evidence
from .measured import Measured
from .model import Trend


@dataclass(frozen=True, slots=True)
class TrendFound:
    """The trend, and the runs that it rests on."""

    trend: Trend
    runs: Sequence[str]


def find_trend(evidence: Evidence, claim: Claim, report: Measured, error: float) -> TrendFound | None:
    """How the metric changes from the lowest value of the axis to the highest; None where it has no two values."""
    if claim.axis is None:
        return None
    settings = {run.name: run.settings.get(claim.axis) for run in evidence.runs}
    placed = {name: at for name in report.runs if (at := claim.position(settings.get(name))) is not None}
    names, places = list(placed), np.array(list(placed.values()))
    if len(set(placed.values())) < 2:
        return None
    centred = places - places.mean()
    weights = centred / (centred**2).sum() * (places.max() - places.min())
    runs = [report.runs[name] for name in names]
    change = float(sum(weight * run.mean for weight, run in zip(weights, runs, strict=True)))
    low, high = _interval(report, names, weights, error)
    values = [float(settings[name] or 0) for name in names]
    by_value = {
        value: [report.runs[name].mean for name, at in zip(names, values, strict=True) if at == value]
        for value in sorted(set(values))
    }
    trend = Trend(
        axis=claim.axis,
        first=min(values),
        last=max(values),
        change=change,
        low=low,
        high=high,
        values={f"{value:g}": sum(means) / len(means) for value, means in by_value.items()},
    )
    return TrendFound(trend, names)


def _interval(
    report: Measured, names: Sequence[str], weights: FloatArray, error: float
) -> tuple[float | None, float | None]:
    """Of the change; where samples are missing, over all that they may have been."""
    filled = [(report.lowest, report.highest), (report.highest, report.lowest)] if report.lowest else []
    ends: list[tuple[float, float]] = []
    for down, up in [(report.runs, report.runs), *filled]:
        # A run counts for the change where its weight is positive and against it elsewhere.
        runs = [(up if weight > 0 else down)[name] for name, weight in zip(names, weights.tolist(), strict=True)]
        found = contrast(runs, weights)
        if found is None:
            return None, None
        width = t_quantile(1 - error, found[2]) * found[1]
        ends.append((found[0] - width, found[0] + width))
    return min(low for low, _ in ends), max(high for _, high in ends)
