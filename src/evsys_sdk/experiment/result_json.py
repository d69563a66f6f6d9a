"""Results as JSON: what `run_result.json` holds and `evsys run --json` prints.

Algorithms of the user's own return whatever they computed with; here it becomes plain JSON, in which NaN is null. What
the SDK notes about a run stands among the extras, where it has been since the first records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from ..protocols import RunNotes, RunResult

_FIELDS = ("run_id", "status", "metrics", "artifacts", "error")
_NOTES: dict[str, type] = {
    "unscored": str,
    "stop_reason": str,
    "stopped_by_search": str,
    "untrained_stages": list,
    "retryable": bool,
    "traceback": str,
    "spend": dict,
    "tokens": dict,
    "renderer": str,
    "trainer": str,
    "selection_metric": str,
    "selection_mode": str,
    "selection": str,
    "scoring_problems": list,
    "findings": list,
    "system_prompt": str,
    "retention": dict,
}
"""What each note looks like in JSON; an extra that only shares its name with one stays an extra."""


def result_to_dict(result: RunResult) -> dict[str, Any]:
    """A result as plain JSON data."""
    found = {name: _plain(getattr(result, name)) for name in _FIELDS}
    return found | {"extras": _plain({**result.extras, **result.notes.to_dict()})}


def result_from_dict(data: Mapping[str, Any]) -> RunResult:
    """The result that was written."""
    metrics = {name: math.nan if value is None else value for name, value in data["metrics"].items()}
    given = {name: data[name] for name in _FIELDS if name != "metrics"}
    return lift_notes(RunResult(**given, metrics=metrics, extras=dict(data["extras"])))


def lift_notes(result: RunResult) -> RunResult:
    """Make notes of the extras that are some: those of a record, or of an algorithm that knows their names."""
    notes = {name: value for name, value in result.extras.items() if isinstance(value, _NOTES.get(name, ()))}
    kept = {name: value for name, value in result.extras.items() if name not in notes}
    return replace(result, extras=kept, notes=RunNotes(**{**notes, **result.notes.to_dict()}))


def portable(result: RunResult) -> RunResult:
    """The result as any other process can read it, whatever the algorithm put into it."""
    plain = result_to_dict(result)
    floats = {name: float(value) for name, value in result.metrics.items() if isinstance(value, float)}
    plain["metrics"] |= floats  # infinite ones stay what they are
    return lift_notes(RunResult(**plain))


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
