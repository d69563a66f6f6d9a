"""What clients reported of an experiment, as the record that `view` reads: rows of tables in place of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.engine import RowMapping

from ....record.events import Event, Kind
from ....record.ledger import Tally
from ....record.reader import ExperimentRecord
from ....record.runs import STARTED, RunRecord, config_runs, plain_spend
from ....record.values import UNFINISHED, Object, part, text
from ....record.view.build import Liveness, view
from ....record.view.model import ExperimentView
from ..ingest.wire import number
from . import schema

_EVENTS = (
    *(Kind.STARTED, Kind.NOTE, Kind.INVALIDATED, Kind.REINSTATED, Kind.AUDITED, Kind.DIAGNOSED),
    *(Kind.APPROVAL_AWAITED, Kind.APPROVED, Kind.REJECTED),
)
"""What a view asks a journal for."""
_TOLD = (
    *("name", "hypothesis", "description", "verdict", "sentence", "metric", "mode", "best_run", "parent_id"),
    *("best_score", "best_low", "best_high", "n_runs", "n_arms", "n_done", "n_failures", "config_sha256"),
)
_TOLD_LISTS = ("tags", "models", "algorithms", "backends", "varied", "flags")


class ReportedRun(RunRecord):
    """An arm as its client reported it."""

    reported_step: int | None = None
    reported_config: Object | None = None

    @property
    def config(self) -> Object | None:
        return self.reported_config

    @property
    def last_metrics(self) -> Object:
        return {} if self.reported_step is None else {"step": self.reported_step}


class ReportedRecord(ExperimentRecord):
    """An experiment as its client reported it."""

    def __init__(self, row: RowMapping, runs: list[RunRecord], events: list[Event], tally: Tally) -> None:
        super().__init__(Path(str(row["id"])))
        self.row, self.runs, self.events, self.tally = row, runs, events, tally
        self.config = _with_runs(_object(row["config"]), runs)
        conclusion = _object(row["conclusion"])
        self.conclusion = conclusion if text(conclusion.get("verdict")) else {}
        self.ending = UNFINISHED if row["status"] in ("running", "waiting") else str(row["status"])
        if spend := plain_spend(_object(row["spend"])):
            self.spend = spend

    @property
    def experiment_id(self) -> str:
        return str(self.row["id"])

    @property
    def began(self) -> float | None:
        return self.row["started"]

    @property
    def ended(self) -> float | None:
        return None if self.ending == UNFINISHED else self.row["ended"]

    @property
    def invalidated(self) -> str:
        return super().invalidated or str(self.row[schema.experiment.c.invalidated.name])

    def view(self, *, running: bool) -> ExperimentView:
        """The view, with what the client stated in place of what follows from its reports."""
        told: Object = {name: self.row[name] for name in _TOLD if self.row[name] not in ("", None)}
        told |= {name: found for name in _TOLD_LISTS if (found := json.loads(self.row[name]))}
        return replace(view(self, Liveness(running)), **told, path="")


def read_records(connection: Connection, project: str, ids: Sequence[str]) -> list[ReportedRecord]:
    """Everything that views of these experiments need, with one query for each table."""
    if not ids:
        return []
    table = schema.experiment
    rows = connection.execute(select(table).where(table.c.project_id == project, table.c.id.in_(ids))).mappings().all()
    events = _read_events(connection, project, ids)
    runs = _read_runs(connection, project, ids, events)
    tallies = _read_tallies(connection, project, ids)
    return [
        ReportedRecord(row, runs.get(row["id"], []), events.get(row["id"], []), tallies.get(row["id"]) or Tally())
        for row in rows
    ]


def _read_events(connection: Connection, project: str, ids: Sequence[str]) -> dict[str, list[Event]]:
    table = schema.event
    mine = (table.c.project_id == project, table.c.experiment_id.in_(ids), table.c.kind.in_(_EVENTS))
    found: dict[str, list[Event]] = {}
    for row in connection.execute(select(table).where(*mine).order_by(table.c.no)).mappings():
        event = Event(str(row["kind"]), str(row["id"]), row["time"], _object(row["data"]))
        found.setdefault(str(row["experiment_id"]), []).append(event)
    return found


def _read_tallies(connection: Connection, project: str, ids: Sequence[str]) -> dict[str, Tally]:
    table = schema.spend_line
    mine = (table.c.project_id == project, table.c.experiment_id.in_(ids))
    found: dict[str, Tally] = {}
    for id, line in connection.execute(
        select(table.c.experiment_id, table.c.line).where(*mine).order_by(table.c.number)
    ):
        found.setdefault(str(id), Tally()).take(str(line).encode())
    return found


def _read_runs(
    connection: Connection, project: str, ids: Sequence[str], events: Mapping[str, Iterable[Event]]
) -> dict[str, list[RunRecord]]:
    run, latest, key, score = schema.run, schema.metric_latest, schema.metric_key, schema.score
    mine = (run.c.project_id == project, run.c.experiment_id.in_(ids))
    last: dict[int, dict[str, tuple[float, float]]] = {}
    joined = select(latest.c.run_no, key.c.name, latest.c.step, latest.c.last).join(key, key.c.id == latest.c.key_id)
    for no, name, step, value in connection.execute(joined.join(run, run.c.no == latest.c.run_no).where(*mine)):
        if value is not None:
            last.setdefault(no, {})[name] = (step, value)
    lines: dict[int, list[Object]] = {}
    scored = select(score.c.run_no, score.c.line).join(run, run.c.no == score.c.run_no).where(*mine)
    for no, line in connection.execute(scored.order_by(score.c.step)):
        lines.setdefault(no, []).append(_as_scored(_object(line)))
    found: dict[str, list[RunRecord]] = {}
    for row in connection.execute(select(run).where(*mine).order_by(run.c.no)).mappings():
        noticed = [
            event.text("text") for event in events.get(row["experiment_id"], ()) if event.text("arm") == row["arm"]
        ]
        made = _make_run(row, last.get(row["no"], {}), lines.get(row["no"], []), noticed)
        found.setdefault(str(row["experiment_id"]), []).append(made)
    return found


def _make_run(
    row: RowMapping, last: Mapping[str, tuple[float, float]], lines: list[Object], findings: Sequence[str]
) -> RunRecord:
    """An arm; the last values that it logged stand for a result that it did not sum up itself."""
    told = {name: value for name, raw in _object(row["metrics"]).items() if (value := number(raw)) is not None}
    made = ReportedRun(
        Path(str(row["experiment_id"])),
        str(row["arm"]),
        str(row["run"]),
        row["seed"],
        STARTED if row["status"] == "running" else str(row["status"]),
        str(row["error"]),
        str(row["unscored"]),
        told or {name: value for name, (_, value) in last.items()},
        plain_spend(_object(row["spend"])),
        findings=tuple(findings),
    )
    # In place of what a `RunRecord` reads from its folder.
    reported: Object = {"result": None, "starts": [], "score_lines": lines, "checkpoints": []}
    reported["logged"] = {name: [point] for name, point in last.items()}
    reported["_progress"] = {"total_steps": row["total_steps"]}
    vars(made).update(reported, reported_step=row["step"], reported_config=_object(row["config"]))
    return made


def _with_runs(config: Object, runs: Sequence[RunRecord]) -> Object:
    """The config with that of each run, which scripts report run by run."""
    if config_runs(config):
        return config
    own = {run.run: {**run.config, "name": run.run} for run in reversed(runs) if run.config}
    return {**config, "runs": list(reversed(own.values()))} if own else config


def _as_scored(line: Object) -> Object:
    """A scoring with each metric as `scores.jsonl` has it; scripts send plain numbers."""
    metrics = part(line, "metrics")
    return {
        **line,
        "metrics": {name: one if isinstance(one, dict) else {"value": one} for name, one in metrics.items()},
    }


def _object(value: Any) -> Object:
    return {} if value in ("{}", "", None) else part({"it": json.loads(value)}, "it")
