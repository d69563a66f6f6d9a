"""What an experiment returns: how each arm ended, which one is best, and what follows."""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from ...errors import BackendError, EvsysError, blame_user_code, clean
from ...log import get_logger
from ...protocols import RunNotes, RunResult, RunStatus
from .arm import Arm

# Results as JSON: what `run_result.json` holds and `evsys run --json` prints.
#
# Algorithms of the user's own return whatever they computed with; here it becomes plain JSON, in which NaN is null.
# What the SDK notes about a run stands among the extras, where it has been since the first records.

_FIELDS = ("run_id", "status", "metrics", "artifacts", "error")


@functools.cache
def _note_types() -> dict[str, type]:
    """What each note looks like in JSON; an extra that only shares its name with one stays an extra."""
    kinds = {name: get_args(hint)[0] for name, hint in get_type_hints(RunNotes).items()}
    return {name: get_origin(kind) or kind for name, kind in kinds.items()}


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
    types = _note_types()
    notes = {name: value for name, value in result.extras.items() if isinstance(value, types.get(name, ()))}
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
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in cast("Iterable[Any]", value)), key=str)  # the same in every process
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("Iterable[Any]", value)]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)  # NumPy and tensors, else its text


type ExperimentStatus = Literal["completed", "failed", "interrupted", "budget"]

STOPPED_BY_SEARCH = "stopped_by_search"
"""Key in the extras of an arm that a search of an earlier version stopped; its value is the reason."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """How one arm ended."""

    arm: Arm
    result: RunResult

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def status(self) -> RunStatus:
        return self.result.status

    @property
    def metrics(self) -> dict[str, float]:
        return self.result.metrics

    @property
    def is_scored(self) -> bool:
        """Whether it was trained to its end and everything was scored, so that it may win."""
        return self.result.status == "completed" and self.result.notes.unscored is None

    def to_dict(self) -> dict[str, Any]:
        return {
            **result_to_dict(self.result),
            "arm_id": self.arm.id,
            "run": self.arm.of_run,
            "seed": self.arm.seed,
        }


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """What became of every arm, and what follows from it."""

    name: str
    path: Path
    arms: list[ArmResult] = field(default_factory=list[ArmResult])
    status: ExperimentStatus = "completed"
    experiment_id: str = ""
    conclusion: dict[str, Any] | None = None
    """The content of `conclusion.json`; None when the experiment was aborted before anything could be concluded."""
    user_code_failed: bool = False
    """Whether a callback left its process, or tried to, after the last arm had ended."""

    @property
    def runs(self) -> list[RunResult]:
        """The plain result of each arm."""
        return [arm.result for arm in self.arms]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each arm, by its name."""
        return {arm.name: arm.metrics for arm in self.arms}

    @property
    def interrupted(self) -> bool:
        return self.status == "interrupted"

    @property
    def best_arm(self) -> str | None:
        """Name of the best run, chosen without looking at the test set; None where none may be called best."""
        return (self.conclusion or {}).get("best_arm")

    @property
    def best_score(self) -> float | None:
        return (self.conclusion or {}).get("best_score")

    @property
    def exit_code(self) -> int:
        """0 all trained, scored and concluded, 2 something of it failed, 3 stopped by the budget, 130 interrupted."""
        codes = {"interrupted": 130, "budget": 3, "failed": 2}
        return codes.get(self.status, 2 if self.conclusion is None or self.user_code_failed else 0)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form printed by `evsys run --json`."""
        return {
            "name": self.name,
            "experiment_id": self.experiment_id,
            "path": str(self.path),
            "status": self.status,
            "interrupted": self.interrupted,
            "runs": [arm.to_dict() for arm in self.arms],
            "best_arm": self.best_arm,
            "best_score": self.best_score,
            "conclusion": self.conclusion,
        }


def fail_run(run_id: str, error: Exception) -> RunResult:
    """The result of a run that raised: one sentence for expected errors, place and traceback for bugs."""
    get_logger(__name__).info("run '%s' failed: %s", run_id, error)
    expected = isinstance(error, EvsysError | OSError)
    # The same arm may succeed when it is tried again, but not if its config, its data or its loss is wrong.
    retryable = isinstance(error, BackendError) or not isinstance(error, EvsysError)
    notes = RunNotes(traceback=None if expected else clean(traceback.format_exc()), retryable=retryable or None)
    place = "" if expected else blame_user_code(error)
    at = f" (at {place})" if place else ""
    return RunResult(run_id, "failed", error=clean(f"{type(error).__name__}: {error}") + at, notes=notes)
