"""How an experiment is getting on, read from its folder by another process while it runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from . import journal as events
from .journal import read_journal
from .locks import lock_owner
from .record_dir import PROGRESS_FILE

_TAIL_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class ArmStatus:
    """How one arm is getting on."""

    arm: str
    state: str = "waiting"
    """waiting, running, or how it ended: completed, failed, cancelled."""
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
    owner = lock_owner(path)
    state, known, arms = "killed", None, dict[str, ArmStatus]()
    for event in read_journal(path):
        kind = event["kind"]
        if kind == events.STARTED:
            known = event["experiment_id"]
            arms |= {entry["arm"]: ArmStatus(entry["arm"]) for entry in event["arms"]}
        elif kind == events.ENDED:
            state = event.get("status", "completed")
        elif kind == events.RESUMED:
            state = "killed"
            arms = {name: replace(arm, state="waiting") for name, arm in arms.items() if arm.state != "completed"} | {
                name: arm for name, arm in arms.items() if arm.state == "completed"
            }
        elif (name := event.get("arm")) is not None:
            arms[name] = _after(arms.get(name, ArmStatus(name)), event)
    running = owner is not None
    found = [_with_progress(arm, path / arm.arm, running) for arm in arms.values()]
    owner = owner or {}
    return LiveStatus(path, known, "running" if running else state, owner.get("pid"), owner.get("host"), found)


def _after(arm: ArmStatus, event: Mapping[str, Any]) -> ArmStatus:
    if event["kind"] == events.ARM_STARTED:
        return replace(arm, state="running", error=None)
    if event["kind"] == events.ARM_RECALLED:
        return replace(arm, state=event.get("status", "completed"))
    if event["kind"] == events.ARM_RETRIED:
        return replace(arm, state="waiting", error=event.get("reason"))
    if event["kind"] == events.ARM_ENDED:
        steps = event.get("metrics", {}).get("steps")
        return replace(arm, state=event["status"], error=event.get("error"), step=None if steps is None else int(steps))
    return arm


def _with_progress(arm: ArmStatus, run_dir: Path, running: bool) -> ArmStatus:
    """Add the last step that was recorded; an arm that was running when its process was killed is not any more."""
    if arm.state == "running" and not running:
        arm = replace(arm, state="broken off")
    try:
        total = json.loads((run_dir / PROGRESS_FILE).read_text(encoding="utf-8")).get("total_steps")
    except (OSError, ValueError):
        total = None
    last = _last_metrics(run_dir / "logs" / "metrics.jsonl") if arm.state != "waiting" else {}
    step = last.get("step", arm.step)
    return replace(arm, total_steps=total, step=None if step is None else int(step), loss=last.get("loss"))


def _last_metrics(path: Path) -> dict[str, Any]:
    """The last line of a step that has a loss; scores are lines too."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "loss" in record:
            return record  # pyright: ignore[reportUnknownVariableType]
    return {}
