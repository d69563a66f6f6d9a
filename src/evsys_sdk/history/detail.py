"""One experiment in detail: its view, and data that is read from its folder on demand."""

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
    """One experiment, with a cache of the data from its arms' files."""

    record: ExperimentRecord
    view: ExperimentView
    requested_run: str = ""
    """The requested run; empty for the best one."""

    @property
    def label(self) -> str:
        """Its id, with the requested run."""
        return f"{self.view.id}:{self.requested_run}" if self.requested_run else self.view.id

    @property
    def side(self) -> Side:
        """The chosen run as one side of a comparison."""
        return Side(self.view, self.chosen_run, self.scores)

    @property
    def folder(self) -> Path:
        return self.record.folder

    @cached_property
    def config(self) -> Object:
        """The config without secrets."""
        return self.record.clean_config

    @property
    def conclusion(self) -> Object:
        return self.record.conclusion

    @property
    def arms(self) -> list[RunRecord]:
        """Every arm, with the result in its folder."""
        return self.record.runs_on_disk

    @property
    def chosen_run(self) -> str:
        """The requested run, else the best one, else the first."""
        return self.requested_run or self.view.best_run or next((arm.run for arm in self.view.arms), "")

    @property
    def chosen_arms(self) -> list[RunRecord]:
        """The arms of the chosen run."""
        return [arm for arm in self.arms if arm.run == self.chosen_run]

    @cached_property
    def scores(self) -> dict[str, SetScores]:
        """Full metric name -> the last scorings of the chosen run's seeds."""
        return scores_of(self.chosen_arms)

    @cached_property
    def best_arm(self) -> RunRecord | None:
        """The arm of the chosen run with the best latest score."""
        scored = [(score[0], arm) for arm in self.chosen_arms if (score := latest_score(arm, self.view.metric))]
        sign = 1 if self.view.mode == "min" else -1
        best = min(scored, key=lambda pair: sign * pair[0], default=None)
        return best[1] if best is not None else next(iter(self.chosen_arms), None)


def read_detail(folder: Path, current: ExperimentView | None = None, *, run: str = "") -> Detail:
    """The experiment in `folder`; a view that is `current` saves half of the time."""
    record = ExperimentRecord.open(folder)
    detail = Detail(record, current or view(record), run)
    if run and not detail.chosen_arms:
        names = list(dict.fromkeys(arm.run for arm in detail.arms))
        hint = suggest(run, names) or f"It has: {', '.join(names[:12])}."
        raise DataError(f"{detail.view.id} has no run {show(run)}. {hint}")
    return detail


def checkpoints(arm: RunRecord) -> list[dict[str, Any]]:
    """Steps and paths of an arm's checkpoints, oldest first."""
    listed: list[dict[str, Any]] = []
    for line in arm.checkpoints:
        step = number(line.get("next_step")) or number(line.get("step"))
        name = text(line.get("sampler")) or text(line.get("state")) or text(line.get("name"))
        listed.append({"step": None if step is None else int(step), "path": name, "final": line.get("final") is True})
    return listed


def commands(detail: Detail) -> dict[str, str]:
    """The commands to resume and to repeat the experiment, for the folder in which it was started."""
    config = shortest(detail.record.files.config)
    texts: dict[str, str] = {}
    if not detail.config:
        return texts
    modules = [name for name in items(detail.record.start.payload.get("imports")) if isinstance(name, str)]
    imports = "".join(f" --import {shlex.quote(name)}" for name in modules)
    if detail.view.status in _RESUMABLE:
        texts["resume"] = f"evsys run {shlex.quote(config)} --resume{imports}"
    texts["reproduce"] = f"evsys run {shlex.quote(config)} --fresh{imports}"
    return texts
