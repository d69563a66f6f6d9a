"""Results as JSON: what `run_result.json` holds and `evsys run --json` prints.

Algorithms of the user's own return whatever they computed with; here it becomes plain JSON, in which NaN is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..protocols import RunResult

_FIELDS = ("run_id", "status", "metrics", "artifacts", "error", "extras")


def result_to_dict(result: RunResult) -> dict[str, Any]:
    """A result as plain JSON data."""
    return {name: _plain(getattr(result, name)) for name in _FIELDS}


def result_from_dict(data: Mapping[str, Any]) -> RunResult:
    """The result that was written."""
    metrics = {name: math.nan if value is None else value for name, value in data["metrics"].items()}
    return RunResult(**{name: data[name] for name in _FIELDS if name != "metrics"}, metrics=metrics)


def portable(result: RunResult) -> RunResult:
    """The result as any other process can read it, whatever the algorithm put into it."""
    plain = result_to_dict(result)
    floats = {name: float(value) for name, value in result.metrics.items() if isinstance(value, float)}
    plain["metrics"] |= floats  # infinite ones stay what they are
    return RunResult(**plain)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in cast("Iterable[Any]", value)]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)  # NumPy and tensors, else its text
