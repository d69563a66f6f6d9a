"""Everything the record has about one experiment: its view, and what is read from its folder on demand."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import DataError, show, suggest
from ..record.reader import ExperimentRecord
from ..record.runs import RunRecord
from ..record.values import Object, items, number, text
from ..record.view.build import view
from ..record.view.model import ExperimentView
from ..record.view.outcome import latest_score
from ..record.view.task_scores import SetScores, scores_of
from .find import shortest
from .pairs import Side

_RESUMABLE = ("running", "waiting", "killed", "interrupted", "budget", "failed")


@dataclass(frozen=True)
class Detail:
    """One experiment; what is read from the files of its arms is kept, because it is asked for several times."""

    record: ExperimentRecord
    view: ExperimentView
    wanted: str = ""
    """The run that is asked for; empty for the best one."""

    @property
    def label(self) -> str:
        """What it is called among others: its id, and the run where one is asked for."""
        return f"{self.view.id}:{self.wanted}" if self.wanted else self.view.id

    @property
    def side(self) -> Side:
        """The chosen run as one side of a comparison."""
        return Side(self.view, self.chosen_run, self.scores)

    @property
    def folder(self) -> Path:
        return self.record.folder

    @cached_property
    def config(self) -> Object:
        """Without its secrets."""
        return self.record.clean_config

    @property
    def conclusion(self) -> Object:
        return self.record.conclusion

    @property
    def arms(self) -> list[RunRecord]:
        """Every arm, with the result that is in its folder."""
        return self.record.runs_on_disk

    @property
    def chosen_run(self) -> str:
        """The run that is asked for, else the best one, else the first."""
        return self.wanted or self.view.best_run or next((arm.run for arm in self.view.arms), "")

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
        """The seed of that run that scored best, by its latest score."""
        scored = [(score[0], arm) for arm in self.chosen_arms if (score := latest_score(arm, self.view.metric))]
        sign = 1 if self.view.mode == "min" else -1
        best = min(scored, key=lambda one: sign * one[0], default=None)
        return best[1] if best is not None else next(iter(self.chosen_arms), None)


def read_detail(folder: Path, known: ExperimentView | None = None, *, run: str = "") -> Detail:
    """The experiment in `folder`; with its view, where that is `known` to be current, in half the time."""
    record = ExperimentRecord.open(folder)
    found = Detail(record, known or view(record), run)
    if run and not found.chosen_arms:
        names = list(dict.fromkeys(arm.run for arm in found.arms))
        hint = suggest(run, names) or f"It has: {', '.join(names[:12])}."
        raise DataError(f"{found.view.id} has no run {show(run)}. {hint}")
    return found


def checkpoints(arm: RunRecord) -> list[dict[str, Any]]:
    """Steps and names of an arm's checkpoints, oldest first."""
    found: list[dict[str, Any]] = []
    for line in arm.checkpoints:
        step = number(line.get("next_step")) or number(line.get("step"))
        name = text(line.get("sampler")) or text(line.get("state")) or text(line.get("name"))
        found.append({"step": None if step is None else int(step), "path": name, "final": line.get("final") is True})
    return found


def commands(detail: Detail) -> dict[str, str]:
    """How to continue with the experiment, and how to do it again; both from the folder it was started in."""
    config = shortest(detail.record.files.config)
    found: dict[str, str] = {}
    if not detail.config:
        return found
    named = [one for one in items(detail.record.start.payload.get("imports")) if isinstance(one, str)]
    imports = "".join(f" --import {shlex.quote(one)}" for one in named)
    if detail.view.status in _RESUMABLE:
        found["resume"] = f"evsys run {shlex.quote(config)} --resume{imports}"
    found["reproduce"] = f"evsys run {shlex.quote(config)} --fresh{imports}"
    return found
