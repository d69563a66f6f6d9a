"""One field: from a value to a neighbouring one, near enough that what worked may still work.

Fields on a log scale are multiplied or divided, by a factor between 1.25 and 3. Others take a step that fits their
range, or their size where they have none. A choice or a boolean takes another of its values.
"""

from __future__ import annotations

import math
from random import Random

from .space import MutableField

_LEAST_FACTOR, _MOST_FACTOR = 1.25, 3.0
_SHARE_OF_RANGE = 0.2
_FROM_NOTHING = (1e-3, 1e-1)
"""Where a number that is 0 goes to, if nothing else says what is much."""
_BACK_TO_NOTHING = 0.1
_TRIES = 20


def move(field: MutableField, rng: Random) -> bool | int | float | str | None:
    """A legal value other than the one it has; None where none was found."""
    if field.kind in ("bool", "choice"):
        others = [choice for choice in field.choices if choice != field.value]
        return rng.choice(others) if others else None
    for _ in range(_TRIES):
        value = _integer(field, rng) if field.kind == "int" else _float(field, rng)
        if value != field.value and field.allows(value):
            return value
    return None


def _integer(field: MutableField, rng: Random) -> int:
    value = int(field.value)
    if field.log and value > 0:
        # Sizes are often powers of two, and stay so.
        if value & (value - 1) == 0 and value > 1:
            return value * 2 if rng.random() < 0.5 else value // 2
        moved = value * _factor(rng)
        return max(value + 1, round(moved)) if moved > value else min(value - 1, round(moved))
    reach = max(1, round((abs(value) if field.high is None else _width(field)) * _SHARE_OF_RANGE))
    return value + rng.choice((-1, 1)) * rng.randint(1, reach)


def _float(field: MutableField, rng: Random) -> float:
    value = float(field.value)
    may_be_nothing = field.allows(0.0)
    if value == 0.0 and (field.log or field.high is None):
        low, high = _FROM_NOTHING
        return _rounded(math.exp(rng.uniform(math.log(low), math.log(high))))
    if field.log or field.high is None or field.low is None:
        if field.log and may_be_nothing and rng.random() < _BACK_TO_NOTHING:
            return 0.0
        return _rounded(value * _factor(rng))
    return _rounded(value + rng.choice((-1, 1)) * rng.uniform(0.1, 1.0) * _SHARE_OF_RANGE * _width(field))


def _factor(rng: Random) -> float:
    size = math.exp(rng.uniform(math.log(_LEAST_FACTOR), math.log(_MOST_FACTOR)))
    return size if rng.random() < 0.5 else 1 / size


def _width(field: MutableField) -> float:
    return (field.high or 0.0) - (field.low or 0.0)


def _rounded(value: float) -> float:
    """Two digits: enough for a search, and readable in a file."""
    return float(f"{value:.2g}")
