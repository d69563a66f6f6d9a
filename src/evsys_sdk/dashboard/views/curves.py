"""Training curves, downsampled to the number of points that a screen can show.

A longer series is divided into buckets of equal width with mean, minimum and maximum, so that spikes stay visible at
any zoom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...record.view.model import ArmView
from ..shapes.experiment import Curves, Series
from .source import BadQuery, Points, RecordSource

MOST_POINTS = 2000
AXES = {"step": "", "tokens": "tokens", "minutes": "time/step_s", "usd": "tokens"}
"""Name of an x axis -> the metric whose running sum it shows; "" for the step itself."""
_PREFERRED = ("reward/mean", "reward", "loss", "train/loss")


@dataclass(frozen=True, slots=True)
class CurveQuery:
    """The metric, axis, range and arms of a request for curves."""

    metric: str = ""
    x: str = "step"
    points: int = 500
    start: float | None = None
    end: float | None = None
    runs: Sequence[str] = ()
    arms: Sequence[str] = ()


def draw_curves(source: RecordSource, id: str, query: CurveQuery) -> Curves:
    """The curves of one metric for the chosen arms."""
    if query.x not in AXES:
        raise BadQuery(f"x is {query.x!r}. It can be {', '.join(AXES)}.")
    names = source.metric_names(id)
    metric = query.metric or default_metric(names)
    arms = [
        arm
        for arm in source.experiment(id).experiment.arms
        if (not query.runs or arm.run in query.runs) and (not query.arms or arm.arm in query.arms)
    ]
    by_arm = source.points(id, [arm.arm for arm in arms], metric) if metric else {}
    clock = source.points(id, list(by_arm), AXES[query.x]) if AXES[query.x] else {}
    series: list[Series] = []
    for arm in arms:
        if arm.arm in by_arm:
            points = _on_axis(by_arm[arm.arm], clock.get(arm.arm), query.x, arm.spend.get("usd", 0.0))
            series.append(_series(arm, points, query))
    priced = any(arm.spend.get("usd") for arm in arms)
    axes = [axis for axis, needed in AXES.items() if (not needed or needed in names) and (axis != "usd" or priced)]
    return Curves(metric=metric, x=query.x, axes=axes, metrics=names, series=series)


def default_metric(names: Sequence[str]) -> str:
    """The reward if present, else the loss, else the first metric; "" if there is none."""
    chosen = [*(name for name in _PREFERRED if name in names), *(name for name in names if "loss" in name), *names]
    return chosen[0] if chosen else ""


def _on_axis(points: Points, clock: Points | None, x: str, usd: float) -> Points:
    """Replace steps by another axis, a running sum that is carried forward to steps without a value.

    For `usd`, the spend of the arm is distributed over its steps in proportion to tokens.
    """
    if x == "step":
        return points
    if clock is None:
        return Points([], [])
    scale = 60.0 if x == "minutes" else 1.0
    if x == "usd":
        scale = sum(value or 0.0 for value in clock.values) / usd if usd else math.inf
    at: list[float] = []
    total, position = 0.0, 0
    for step in points.steps:
        while position < len(clock.steps) and clock.steps[position] <= step:
            total += (clock.values[position] or 0.0) / scale
            position += 1
        at.append(total)
    return Points(at, points.values)


def _series(arm: ArmView, points: Points, query: CurveQuery) -> Series:
    inside = [
        (x, y)
        for x, y in zip(points.steps, points.values, strict=True)
        if (query.start is None or x >= query.start) and (query.end is None or x <= query.end)
    ]
    x, y, low, high = downsample(inside, max(1, min(query.points, MOST_POINTS)))
    return Series(arm=arm.arm, run=arm.run, seed=arm.seed, n=len(inside), x=x, y=y, low=low, high=high)


def downsample(points: Sequence[tuple[float, float | None]], most: int) -> tuple[list[float], Any, Any, Any]:
    """Return x, mean, minimum and maximum of at most `most` buckets; None for buckets without a finite value."""
    if len(points) <= most:
        values = [value for _, value in points]
        return [float(x) for x, _ in points], values, list(values), list(values)
    import numpy as np

    x = np.array([point[0] for point in points], dtype=np.float64)
    y = np.array([math.nan if point[1] is None else point[1] for point in points], dtype=np.float64)
    width = (x[-1] - x[0]) / most or 1.0  # all at one x: one bucket
    # the last x is on the upper edge of the last bucket and belongs to it
    bucket = np.minimum(((x - x[0]) / width).astype(np.int64), most - 1)
    # x is sorted, so each bucket is a slice of points, and `reduceat` reduces from one first index to the next.
    first = np.flatnonzero(np.diff(bucket, prepend=-1))
    finite = np.isfinite(y)
    count = np.add.reduceat(finite.astype(np.float64), first)
    mean = np.add.reduceat(np.where(finite, y, 0.0), first) / np.maximum(count, 1.0)
    low = np.minimum.reduceat(np.where(finite, y, np.inf), first)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), first)

    def list_values(values: Any) -> list[float | None]:
        return [float(value) if n_finite else None for value, n_finite in zip(values, count, strict=True)]

    return x[first].tolist(), list_values(mean), list_values(low), list_values(high)
