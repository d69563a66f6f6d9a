"""Everything the record has about one experiment, read from its folder: what `show` and `compare` are made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..redact import redact, redact_text
from .arm_records import ArmRecord, add_spend, arm_records
from .liveness import is_running
from .outcome import Outcome, outcome_of
from .reading import CHECKPOINTS, CONCLUSION, CONFIG, JOURNAL, Object, number, read_lines, read_object, text
from .roots import shortest
from .summarize import UNFINISHED, summarize
from .summary import ExperimentSummary

_RESUMABLE = ("running", "killed", "interrupted", "budget", "failed")


@dataclass(frozen=True, slots=True)
class Detail:
    """One experiment."""

    folder: Path
    summary: ExperimentSummary
    config: Object
    """Without its secrets."""
    conclusion: Object
    outcome: Outcome
    arms: list[ArmRecord]
    decisions: list[Object]
    """What search and budget decided, in order."""

    @property
    def chosen_run(self) -> str:
        """The best run, or the first one where none is."""
        return self.outcome.best_run or next((arm.run for arm in self.arms), "")

    @property
    def chosen_arms(self) -> list[ArmRecord]:
        """The seeds of that run."""
        return [arm for arm in self.arms if arm.run == self.chosen_run]

    def arm_dir(self, arm: ArmRecord) -> Path:
        return self.folder / arm.name

    @property
    def best_arm(self) -> ArmRecord | None:
        """The seed of the best run that scored best."""
        scored = [arm for arm in self.chosen_arms if self.outcome.metric in arm.metrics]
        sign = 1 if self.outcome.mode == "min" else -1
        return min(scored, key=lambda arm: sign * arm.metrics[self.outcome.metric], default=None) or next(
            iter(self.chosen_arms), None
        )


def read_detail(folder: Path) -> Detail:
    """The experiment in `folder`."""
    from dataclasses import replace

    summary = summarize(folder)
    if summary is None:
        raise DataError(f"{folder}: this is not the record of an experiment. List them with: evsys history")
    if summary.status == UNFINISHED:
        summary = replace(summary, status="running" if is_running(folder) else "killed")
    config, events = read_object(folder / CONFIG) or {}, list(read_lines(folder / JOURNAL))
    conclusion = read_object(folder / CONCLUSION) or {}
    arms = arm_records(folder, config, events, from_files=True)
    decisions = [event for event in events if event.get("kind") in ("search_decision", "budget_stop", "arm_retried")]
    return Detail(folder, summary, redact(config), conclusion, outcome_of(conclusion, config, arms), arms, decisions)


def run_spend(detail: Detail, run: str) -> dict[str, float]:
    """What all seeds of a run took."""
    total: dict[str, float] = {}
    for arm in detail.arms:
        total = add_spend(total, arm.spend) if arm.run == run else total
    return total


def checkpoints(folder: Path, arm: str) -> list[dict[str, Any]]:
    """Steps and names of an arm's checkpoints, oldest first."""
    found: list[dict[str, Any]] = []
    for line in read_lines(folder / arm / CHECKPOINTS):
        step = number(line.get("next_step")) or number(line.get("step"))
        name = text(line.get("sampler")) or text(line.get("state")) or text(line.get("name"))
        found.append({"step": None if step is None else int(step), "path": name, "final": line.get("final") is True})
    return found


def failures(detail: Detail) -> list[dict[str, str]]:
    """Every arm without a result to count on, and why."""
    return [{"arm": arm.name, "reason": redact_text(arm.problem)} for arm in detail.arms if arm.problem]


def commands(detail: Detail) -> dict[str, str]:
    """How to go on with the experiment, and how to do it again; both from the folder it was started in."""
    config = shortest(detail.folder / CONFIG)
    found: dict[str, str] = {}
    if not detail.config:
        return found
    if detail.summary.status in _RESUMABLE:
        found["resume"] = f"evsys run {_quoted(str(config))} --resume"
    found["reproduce"] = f"evsys run {_quoted(str(config))} --fresh"
    return found


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)
