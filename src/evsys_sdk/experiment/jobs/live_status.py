"""The progress of a running experiment, read from its folder by another process or thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ...record.reader import ExperimentRecord
from ...record.runs import PENDING, STARTED, RunRecord
from ...record.values import number, stamp_of
from ...record.view.build import Liveness, arm_status, status_of
from ...record.view.model import LIVE

WAITING, RUNNING = "waiting", "running"

type Scores = dict[str, tuple[int, float]]
"""Metric -> the latest step at which it was scored, and the value."""


@dataclass(frozen=True, slots=True)
class ArmStatus:
    """The progress of one arm."""

    arm: str
    state: str
    """One of `ARM_STATUSES` of the view."""
    step: int | None = None
    total_steps: int | None = None
    measure: str = "loss"
    """Progress metric of its recipe: loss, reward/mean, ..."""
    value: float | None = None
    """Value of `measure` at the last step."""
    loss: float | None = None
    scores: dict[str, float] = field(default_factory=dict[str, float])
    """The latest score by metric."""
    scored_at: dict[str, int] = field(default_factory=dict[str, int])
    """The step of each of these scores."""
    step_s: float | None = None
    """Mean duration of its last steps."""
    seconds: float | None = None
    """Seconds since its last start; None if it is not running."""
    error: str | None = None
    findings: tuple[str, ...] = ()
    """Findings of the diagnosis."""

    @property
    def has_ended(self) -> bool:
        return self.state not in (WAITING, RUNNING)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds of training left, without scoring."""
        if self.state != RUNNING or self.step_s is None or not self.total_steps:
            return None
        return max(self.total_steps - (self.step or 0), 0) * self.step_s


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """The progress of an experiment."""

    path: Path
    experiment_id: str | None
    state: str
    """One of `STATUSES` of the view."""
    pid: int | None
    host: str | None
    arms: list[ArmStatus]

    @property
    def counts(self) -> dict[str, int]:
        """Number of arms in each state."""
        return dict(Counter(arm.state for arm in self.arms))

    @property
    def done(self) -> int:
        """Number of arms that have ended and are not resumed by the same command."""
        return sum(arm.has_ended and arm.state not in ("cancelled", "killed") for arm in self.arms)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the last arm is trained; None if unknown."""
        return estimate_left(self.arms) if self.state in LIVE else None

    def to_dict(self) -> dict[str, Any]:
        arms = [{**asdict(arm), "seconds_left": arm.seconds_left} for arm in self.arms]
        fields = {**asdict(self), "path": str(self.path), "counts": self.counts}
        return {**fields, "seconds_left": self.seconds_left, "arms": arms}


def experiment_status(path: Path) -> LiveStatus:
    """The current state of the experiment in a folder."""
    return StatusReader().read(path)


@dataclass(slots=True)
class StatusReader:
    """Reads the state repeatedly; reads the large score files only when they change."""

    _scores: dict[Path, tuple[tuple[int, int] | None, Scores]] = field(
        default_factory=dict[Path, tuple[tuple[int, int] | None, Scores]]
    )

    def read(self, path: Path, *, to_count: bool = False) -> LiveStatus:
        """The current state of the experiment in a folder; with `to_count`, without details if no arm is running."""
        record = ExperimentRecord(path)
        owner, state = record.owner, status_of(record, Liveness(record.is_running))
        if to_count and all(run.status != STARTED for run in record.runs):
            arms = [ArmStatus(run.name, arm_status(run.status, state)) for run in record.runs]
        else:
            arms = [_arm_status(run, state, self._read_scores(run)) for run in record.runs]
        return LiveStatus(path, record.experiment_id, state, owner.get("pid"), owner.get("host"), arms)

    def _read_scores(self, run: RunRecord) -> Scores:
        stamp = stamp_of(run.files.scores)
        cached = self._scores.get(run.folder)
        if cached is None or cached[0] != stamp:
            cached = self._scores[run.folder] = (stamp, run.latest_scores if stamp else {})
        return cached[1]


def estimate_left(arms: Sequence[ArmStatus]) -> float | None:
    """Estimated seconds until all arms are trained, with as many at a time as now."""
    speeds = [arm.step_s for arm in arms if arm.step_s is not None]
    lengths = [arm.total_steps for arm in arms if arm.total_steps]
    running = [arm for arm in arms if arm.state == RUNNING]
    if not speeds or not lengths or not running:
        return None
    usual_length, usual_speed = fmean(lengths), fmean(speeds)
    seconds = [
        max((arm.total_steps or usual_length) - (arm.step or 0), 0) * (arm.step_s or usual_speed)
        for arm in arms
        if not arm.has_ended
    ]
    return max(sum(seconds) / len(running), max(seconds))  # at least as long as the longest arm


def _arm_status(run: RunRecord, experiment: str, scores: Scores) -> ArmStatus:
    state = arm_status(run.status, experiment)
    begun = run.status != PENDING
    last = run.last_metrics if begun else {}
    step = number(last.get("step")) or run.metrics.get("steps")
    measure, _ = run.measure
    return ArmStatus(
        run.name,
        state,
        step=None if step is None else int(step),
        total_steps=run.total_steps,
        measure=measure,
        value=number(last.get(measure)),
        loss=number(last.get("loss")),
        scores={metric: value for metric, (_, value) in scores.items()},
        scored_at={metric: at for metric, (at, _) in scores.items()},
        step_s=run.step_seconds if begun else None,
        seconds=time.time() - run.starts[-1] if state == RUNNING and run.starts else None,
        error=run.error or None,
        findings=run.findings,
    )
