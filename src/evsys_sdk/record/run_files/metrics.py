"""Metrics as JSON: one object per step.

JSON has no NaN and no infinity. Such a value is written as null, and the key `_nonfinite` holds its name:

    {"step": 3, "loss": null, "lr": 0.1, "_nonfinite": {"loss": "NaN"}}

Other readers see a missing value; `restore_nonfinite` restores the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from ...errors import DataError, show
from ..jsonable import nonfinite_text

NONFINITE = "_nonfinite"
"""Key of the non-finite values of a recorded line."""

TIMING = ("time/", "system/")
"""Prefixes of the metrics that differ between repetitions of the same run."""

COMPUTE_S = "time/compute_s"
"""Seconds of computation for a step, without waiting; only some engines report it."""


def split_timing(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The reproducible metrics, and those that measure the machine."""
    timing = {name: value for name, value in metrics.items() if name.startswith(TIMING)}
    return {name: value for name, value in metrics.items() if name not in timing}, timing


def metrics_record(step: int, metrics: Mapping[str, float], **labels: str) -> dict[str, Any]:
    """A line with step, labels and metrics."""
    record: dict[str, Any] = {"step": int(step), **labels}
    nonfinite: dict[str, str] = {}
    for name, value in metrics.items():
        number = as_number(name, value)
        if name in record or name == NONFINITE:
            if name == "step" and number == record["step"]:
                continue
            raise DataError(
                f"metric '{name}' ({show(value)}) has a name that recorded lines use themselves. Rename it."
            )
        finite = isinstance(number, int) or math.isfinite(number)
        record[name] = number if finite else None
        if not finite:
            nonfinite[name] = nonfinite_text(number)
    return record | ({NONFINITE: nonfinite} if nonfinite else {})


def restore_nonfinite(record: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded line with its NaN and infinities."""
    metrics = {key: value for key, value in record.items() if key != NONFINITE}
    return metrics | {key: float(text) for key, text in record.get(NONFINITE, {}).items()}


def as_number(name: str, value: Any) -> int | float:
    """A metric's value as a Python number; accepts NumPy scalars and one-element tensors."""
    if isinstance(value, Integral):
        return int(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"metric '{name}' is not a number (got {show(value)}). Log numbers only.") from None
