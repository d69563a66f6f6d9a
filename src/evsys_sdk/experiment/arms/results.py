"""The results of arms and of an experiment, and their JSON form."""

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

_FIELDS = ("run_id", "status", "metrics", "artifacts", "error")


@functools.cache
def _note_types() -> dict[str, type]:
    """The JSON type of each note; an extra with the name of a note and another type stays an extra."""
    kinds = {name: get_args(hint)[0] for name, hint in get_type_hints(RunNotes).items()}
    return {name: get_origin(kind) or kind for name, kind in kinds.items()}


def result_to_dict(result: RunResult) -> dict[str, Any]:
    """A result as plain JSON data, as in `run_result.json`; NaN becomes null, and notes are among the extras."""
    fields = {name: _plain(getattr(result, name)) for name in _FIELDS}
    return fields | {"extras": _plain({**result.extras, **result.notes.to_dict()})}


def result_from_dict(data: Mapping[str, Any]) -> RunResult:
    """The result from its JSON form."""
    metrics = {name: math.nan if value is None else value for name, value in data["metrics"].items()}
    fields = {name: data[name] for name in _FIELDS if name != "metrics"}
    return lift_notes(RunResult(**fields, metrics=metrics, extras=dict(data["extras"])))


def lift_notes(result: RunResult) -> RunResult:
    """Move extras that are notes, by name and type, into the notes."""
    types = _note_types()
    notes = {name: value for name, value in result.extras.items() if isinstance(value, types.get(name, ()))}
    extras = {name: value for name, value in result.extras.items() if name not in notes}
    return replace(result, extras=extras, notes=RunNotes(**{**notes, **result.notes.to_dict()}))


def portable(result: RunResult) -> RunResult:
    """The result with plain values only, so that another process can read it."""
    plain = result_to_dict(result)
    floats = {name: float(value) for name, value in result.metrics.items() if isinstance(value, float)}
    plain["metrics"] |= floats  # keeps infinite values
    return lift_notes(RunResult(**plain))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in cast("Iterable[Any]", value)), key=str)
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("Iterable[Any]", value)]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)  # NumPy and tensors


type ExperimentStatus = Literal["completed", "failed", "interrupted", "budget"]


@dataclass(frozen=True, slots=True)
class ArmResult:
    """An arm with its result."""

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
        """Whether it was trained to the end and scored on everything, so that it may win."""
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
    """The results of all arms, and the conclusion."""

    name: str
    path: Path
    arms: list[ArmResult] = field(default_factory=list[ArmResult])
    status: ExperimentStatus = "completed"
    experiment_id: str = ""
    conclusion: dict[str, Any] | None = None
    """The content of `conclusion.json`; None if the experiment stopped before a conclusion."""
    user_code_failed: bool = False
    """Whether a callback ended its process, or tried to, after the last arm."""

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
        """Name of the best run, selected without the test set; None if no run may be called best."""
        return (self.conclusion or {}).get("best_arm")

    @property
    def best_score(self) -> float | None:
        return (self.conclusion or {}).get("best_score")

    @property
    def exit_code(self) -> int:
        """0 all arms trained, scored and concluded; 2 a failure; 3 stopped by the budget; 130 interrupted."""
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
    """The result of a run that raised: the message for expected errors, place and traceback for bugs."""
    get_logger(__name__).info("run '%s' failed: %s", run_id, error)
    expected = isinstance(error, EvsysError | OSError)
    # A retry cannot help if the config, the data or the loss is wrong.
    retryable = isinstance(error, BackendError) or not isinstance(error, EvsysError)
    notes = RunNotes(traceback=None if expected else clean(traceback.format_exc()), retryable=retryable or None)
    place = "" if expected else blame_user_code(error)
    at = f" (at {place})" if place else ""
    return RunResult(run_id, "failed", error=clean(f"{type(error).__name__}: {error}") + at, notes=notes)
