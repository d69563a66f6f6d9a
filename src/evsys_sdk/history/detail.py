"""Everything the record has about one experiment, read from its folder: what `show` and `compare` are made of."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..record.reader import UNFINISHED, ExperimentRecord
from ..record.runs import RunRecord, add_spend
from ..record.values import Object, items, number, text
from ..redact import redact_text
from .find import shortest
from .outcome import Outcome, SetScores, latest_score, outcome_of, scores_of
from .summarize import summarize, without_secrets
from .summary import ExperimentSummary

_RESUMABLE = ("running", "killed", "interrupted", "budget", "failed")


@dataclass(frozen=True)
class Detail:
    """One experiment; what is worked out from the scores of its arms is kept, because each view asks several times."""

    record: ExperimentRecord
    summary: ExperimentSummary
    config: Object
    """Without its secrets."""
    conclusion: Object
    outcome: Outcome
    arms: list[RunRecord]
    decisions: list[Object]
    """What search and budget decided, in order."""

    @property
    def folder(self) -> Path:
        return self.record.folder

    @property
    def chosen_run(self) -> str:
        """The best run, or the first one where none is."""
        return self.outcome.best_run or next((arm.run for arm in self.arms), "")

    @property
    def chosen_arms(self) -> list[RunRecord]:
        """The seeds of that run."""
        return [arm for arm in self.arms if arm.run == self.chosen_run]

    @cached_property
    def scores(self) -> dict[str, SetScores]:
        """The last scoring of each set by the seeds of that run, by full metric name."""
        return scores_of(self.chosen_arms)

    @cached_property
    def best_arm(self) -> RunRecord | None:
        """The seed of the best run that scored best, by its latest score."""
        scored = [(score[0], arm) for arm in self.chosen_arms if (score := latest_score(arm, self.outcome.metric))]
        sign = 1 if self.outcome.mode == "min" else -1
        best = min(scored, key=lambda one: sign * one[0], default=None)
        return best[1] if best is not None else next(iter(self.chosen_arms), None)


def read_detail(folder: Path, summary: ExperimentSummary | None = None) -> Detail:
    """The experiment in `folder`; with its `summary`, where that is known to be true, in half the time."""
    record = ExperimentRecord.open(folder)
    summary = summary or summarize(record)
    if summary.status == UNFINISHED:
        summary = replace(summary, status=record.status)
    config, arms = record.config or {}, record.runs_on_disk
    outcome = outcome_of(record.conclusion, config, arms)
    decisions = [event.to_dict() for event in record.decisions]
    return Detail(record, summary, without_secrets(config), record.conclusion, outcome, arms, decisions)


def run_spend(detail: Detail, run: str) -> dict[str, float]:
    """What all seeds of a run took."""
    return add_spend(*(detail.record.spend_of(arm) for arm in detail.arms if arm.run == run))


def checkpoints(arm: RunRecord) -> list[dict[str, Any]]:
    """Steps and names of an arm's checkpoints, oldest first."""
    found: list[dict[str, Any]] = []
    for line in arm.checkpoints:
        step = number(line.get("next_step")) or number(line.get("step"))
        name = text(line.get("sampler")) or text(line.get("state")) or text(line.get("name"))
        found.append({"step": None if step is None else int(step), "path": name, "final": line.get("final") is True})
    return found


def failures(detail: Detail) -> list[dict[str, str]]:
    """Every arm without a result to count on, and why."""
    return [{"arm": arm.name, "reason": redact_text(arm.problem)} for arm in detail.arms if arm.problem]


def commands(detail: Detail) -> dict[str, str]:
    """How to go on with the experiment, and how to do it again; both from the folder it was started in."""
    config = shortest(detail.record.files.config)
    found: dict[str, str] = {}
    if not detail.config:
        return found
    named = [one for one in items(detail.record.start.payload.get("imports")) if isinstance(one, str)]
    imports = "".join(f" --import {shlex.quote(one)}" for one in named)
    if detail.summary.status in _RESUMABLE:
        found["resume"] = f"evsys run {shlex.quote(str(config))} --resume{imports}"
    found["reproduce"] = f"evsys run {shlex.quote(str(config))} --fresh{imports}"
    return found
