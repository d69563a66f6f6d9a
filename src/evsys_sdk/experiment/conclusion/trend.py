"""The linear trend of the scores of all runs along an axis, with its interval."""

from __future__ import annotations

import numpy as np

from ..statistics.student_t import t_quantile
from ..statistics.two_level import contrast
from .comparison import Analysis
from .model import Trend


def find_trend(analysis: Analysis) -> Trend | None:
    """Fit the change of the metric from the lowest to the highest value of the axis; None without two values."""
    claim, report = analysis.claim, analysis.report
    if claim is None or claim.kind != "trend" or claim.axis is None:
        return None
    settings = {run.name: run.settings.get(claim.axis) for run in analysis.evidence.runs}
    placed = {name: at for name in report.runs if (at := claim.position(settings.get(name))) is not None}
    if len(set(placed.values())) < 2:
        return None
    places = np.array(list(placed.values()))
    centred = places - places.mean()
    weights = centred / (centred**2).sum() * (places.max() - places.min())
    runs = [report.runs[name] for name in placed]
    change, low, high = float(sum(weight * run.mean for weight, run in zip(weights, runs, strict=True))), None, None
    if (found := contrast(runs, weights.tolist())) is not None and found.stderr > 0:
        width = t_quantile(1 - analysis.level.here, found.df) * found.stderr
        low, high = found.low - width, found.high + width
    values = sorted(float(settings[name] or 0) for name in placed)
    return Trend(claim.axis, values[0], values[-1], change, low, high)
