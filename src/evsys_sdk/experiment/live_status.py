"""How an experiment is getting on, read from its folder by another process while it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..record.reader import ExperimentRecord
from ..record.runs import PENDING, STARTED, RunRecord
from ..record.values import number


@dataclass(frozen=True, slots=True)
class ArmStatus:
    """How one arm is getting on."""

    arm: str
    state: str
    """waiting, running, broken off (its process was killed), or how it ended: completed, failed, cancelled."""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """How an experiment is getting on."""

    path: Path
    experiment_id: str | None
    state: str
    """running, how it ended (completed, failed, interrupted, budget), or `killed`: it neither runs nor has ended."""
    pid: int | None
    host: str | None
    arms: list[ArmStatus]

    @property
    def counts(self) -> dict[str, int]:
        """How many arms are in each state."""
        return dict(Counter(arm.state for arm in self.arms))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "counts": self.counts}


def experiment_status(path: Path) -> LiveStatus:
    """The state of the experiment in a folder, at this moment."""
    record = ExperimentRecord(path)
    owner, running = record.owner, record.is_running
    arms = [_arm_status(run, running) for run in record.runs]
    return LiveStatus(path, record.experiment_id, record.status, owner.get("pid"), owner.get("host"), arms)


def _arm_status(run: RunRecord, running: bool) -> ArmStatus:
    words = {PENDING: "waiting", STARTED: "running" if running else "broken off"}
    last = run.last_metrics if run.status != PENDING else {}
    step = number(last.get("step")) or run.metrics.get("steps")
    return ArmStatus(
        run.name,
        words.get(run.status, run.status),
        step=None if step is None else int(step),
        total_steps=run.total_steps,
        loss=number(last.get("loss")),
        error=run.error or None,
    )
