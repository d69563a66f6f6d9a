"""What an experiment returns: how each arm ended, which one is best, and what follows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..protocols import RunResult, RunStatus
from .arms import Arm
from .result_json import result_to_dict

type ExperimentStatus = Literal["completed", "failed", "interrupted", "budget"]

STOPPED_BY_SEARCH = "stopped_by_search"
"""Key in the extras of the record of an arm that a search left where it was; its value says why."""
_PAUSED = re.compile(r"paused after step (\d+)")


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

    @property
    def is_as_planned(self) -> bool:
        """Whether it went as far as it should: to its end, or to where a search decided against it."""
        notes = self.result.notes
        return self.is_scored or (notes.stopped_by_search is not None and notes.unscored is None)

    @property
    def paused_after(self) -> int | None:
        """The step after which it was paused, to be taken up again if a search asks for it; None if it was not."""
        return paused_after(self.result)

    def to_dict(self) -> dict[str, Any]:
        return {
            **result_to_dict(self.result),
            "arm_id": self.arm.id,
            "run": self.arm.of_run,
            "seed": self.arm.seed,
        }


def paused_after(result: RunResult) -> int | None:
    """The step after which a run broke off because it was only asked to go that far."""
    match = _PAUSED.fullmatch(result.notes.stop_reason or "")
    return int(match[1]) if match and result.status == "cancelled" else None


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """What became of every arm, and what follows from it."""

    name: str
    path: Path
    arms: list[ArmResult] = field(default_factory=list[ArmResult])
    status: ExperimentStatus = "completed"
    experiment_id: str = ""
    conclusion: dict[str, Any] | None = None
    """The content of `conclusion.json`; None when the experiment was broken off before anything could be concluded."""

    @property
    def runs(self) -> list[RunResult]:
        """The plain result of each arm."""
        return [arm.result for arm in self.arms]

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
        """0 all trained and scored, 2 an arm failed or is unscored, 3 stopped by the budget, 130 interrupted."""
        codes = {"interrupted": 130, "budget": 3, "failed": 2}
        return codes.get(self.status, 0)

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
