"""Read the scores, end time and spend of a family from the record of its experiment."""

from __future__ import annotations

from typing import Any

from ...record.events import Kind
from ...record.reader import ExperimentRecord
from ...record.values import number
from .policy import Point

_SPENT = {"wall_s": ("wall_s",), "tokens": ("tokens_trained", "tokens_sampled"), "usd": ("usd",)}


def read_point(score: dict[str, Any], mode: str, cost: float) -> Point | None:
    """A score with its standard error, higher is better; None if it has no value."""
    value, low, high = number(score.get("value")), number(score.get("low")), number(score.get("high"))
    if value is None:
        return None
    # The standard error of a score of 0 or 1 is 0, so the width of the interval is used.
    wide = (high - low) / 3.92 if low is not None and high is not None else 0.0
    return Point(cost, -value if mode == "min" else value, max(number(score.get("stderr")) or 0.0, wide))


def ended_at(record: ExperimentRecord | None) -> float | None:
    """The time an experiment ended, normally or by a limit; None if it is running, interrupted or killed."""
    turns = (
        [event for event in record.events if event.kind in (Kind.STARTED, Kind.RESUMED, Kind.ENDED)] if record else []
    )
    has_ended = turns and turns[-1].kind == Kind.ENDED and turns[-1].text("status") != "interrupted"
    return turns[-1].time if has_ended else None


def spent_amount(spend: dict[str, float], unit: str) -> float:
    """The spend in the unit of the campaign's limit."""
    return sum(spend.get(name, 0.0) for name in _SPENT[unit])
