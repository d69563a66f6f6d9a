"""The views of experiments in the database: built and queried by the same code as for records on disk.

`ReportedRecord` presents reported data like a record on disk. A view is stored with the version of its experiment, and
rebuilt when the version changes or a running experiment has not reported for `_QUIET_S`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, and_, or_, select
from sqlalchemy.engine import RowMapping

from ....history.cache import COLUMNS, LISTED, searched_text, view_version
from ....record.events import Event, Kind
from ....record.ledger import Tally
from ....record.reader import ExperimentRecord
from ....record.runs import STARTED, RunRecord, config_runs, plain_spend
from ....record.values import UNFINISHED, Object, items, number, part, text
from ....record.view.build import Liveness, view
from ....record.view.model import LIVE, ExperimentView
from ...records import FIELD_TYPES
from ...shapes.experiment import ShownExperiment
from ...views.lists import shown
from . import schema, store
from .writer import Busy, Writer

_EVENTS = (
    *(Kind.STARTED, Kind.RESUMED, Kind.ENDED, Kind.NOTE, Kind.TAGGED, Kind.INVALIDATED, Kind.REINSTATED, Kind.AUDITED),
    *(Kind.DIAGNOSED, Kind.APPROVAL_AWAITED, Kind.APPROVED, Kind.REJECTED),
)
"""Kinds of events that a view needs."""
_FROM_THE_RECORD = ("status", "started", "ended", "spend", "flags", "invalidated")
"""Fields of a view that are computed from the record, even if the client set them."""
_QUIET_S = 900.0
"""A running experiment without reports for longer counts as no longer running."""
_CHECK_S = 5.0
"""Interval of checks for running experiments without reports."""
_BATCH = 200
_LARGEST_CACHED, _MOST_CACHED = 2000, 200
"""Maximum number of rows of a cached query result, and of cached results per project."""
_MOST_LINES = 20_000


type LineCache = dict[tuple[str, str, int, str], ShownExperiment]
"""Cache of list lines by project, id, version and status; never mutated."""


class StoredViews:
    """The views of one project: a `ViewTable` of `history/query.py`."""

    text = (
        "(SELECT text FROM experiment_detail AS detail WHERE detail.project_id = experiment_view.project_id "
        "AND detail.folder = experiment_view.folder)"
    )

    def __init__(self, connection: Connection, project: str, maker: ViewMaker) -> None:
        self._connection, self._project, self._lines = connection, project, maker.lines
        self._results = maker.results.setdefault(project, {})
        self._is_postgres = connection.dialect.name == "postgresql"

    def rows_by_root(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[tuple[str, Sequence[tuple[Any, ...]]]]:
        """Columns of the rows that match a condition."""
        within = f"project_id = ? AND ({condition})" if condition else "project_id = ?"
        sql = f"SELECT {', '.join(columns)} FROM {schema.experiment_view.name} WHERE {within} {tail}"
        if self._is_postgres:
            sql = sql.replace("instr(", "strpos(").replace("?", "%s")
        parameters = (self._project, *values)
        rows = self._results.get((sql, *parameters))
        if rows is None:
            rows = [tuple(row) for row in self._connection.exec_driver_sql(sql, parameters)]
            if len(rows) <= _LARGEST_CACHED and len(self._results) < _MOST_CACHED:
                self._results[sql, *parameters] = rows
        return [("", rows)]

    def load(self, places: Sequence[tuple[str, int]]) -> list[ExperimentView]:
        """The list lines of experiments; unknown ones are skipped."""
        table, detail, ids = schema.experiment_view, schema.experiment_detail, [id for id, _ in places]
        chosen = (table.c.project_id == self._project, table.c.folder.in_(ids))
        query = select(table.c.folder, table.c.version, table.c.status).where(*chosen)
        stamps = {id: (self._project, id, at, status) for id, at, status in self._connection.execute(query)}
        missing = [id for id, stamp in stamps.items() if stamp not in self._lines]
        query = select(detail.c.folder, detail.c.view).where(detail.c.project_id == self._project)
        for id, line in self._connection.execute(query.where(detail.c.folder.in_(missing))) if missing else ():
            self._lines[stamps[id]] = shown(ExperimentView.from_json(line), stamps[id][2], line=True)
        return [self._lines[stamps[id]] for id in ids if id in stamps and stamps[id] in self._lines]

    def read(self, id: str) -> ExperimentView | None:
        """The complete view of one experiment, or None if it is not built."""
        table = schema.experiment_detail
        query = select(table.c.view).where(table.c.project_id == self._project, table.c.folder == id)
        line = self._connection.execute(query).scalar()
        return None if line is None else ExperimentView.from_json(line)


class ViewMaker:
    """Rebuilds the views of changed experiments before they are queried; thread-safe."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self._engine, self._writer = engine, writer
        self._refreshed: dict[str, tuple[int, float]] = {}
        """Project -> its version and the time of the last refresh."""
        self.lines: LineCache = {}
        self.results: dict[str, dict[tuple[Any, ...], list[tuple[Any, ...]]]] = {}
        """Project -> cached query results since the last refresh, because many users request the same pages."""

    def refresh(self, project: str) -> None:
        """Rebuild outdated views of a project; a busy server keeps the existing ones."""
        table, now = schema.project, time.monotonic()
        with self._engine.connect() as connection:
            version = connection.execute(select(table.c.version).where(table.c.id == project)).scalar() or 0
            built_version, at = self._refreshed.get(project, (-1, 0.0))
            if built_version == version and now - at < _CHECK_S:
                return
            self.results.pop(project, None)
            changed = _list_changed(connection, project)
        if len(self.lines) > _MOST_LINES:
            self.lines.clear()
        with suppress(Busy):
            for begin in range(0, len(changed), _BATCH):
                batch = changed[begin : begin + _BATCH]
                self._writer.call(lambda connection, batch=batch: _store_views(connection, project, batch))
            self._refreshed[project] = (version, now)


def _list_changed(connection: Connection, project: str, ids: Sequence[str] | None = None) -> list[str]:
    table, stored = schema.experiment, schema.experiment_view
    same = and_(stored.c.project_id == table.c.project_id, stored.c.folder == table.c.id)
    silent = and_(stored.c.status.in_(LIVE), table.c.heard < time.time() - _QUIET_S)
    outdated = or_(
        stored.c.version.is_(None), stored.c.version != table.c.version, stored.c.made_by != view_version(), silent
    )
    query = select(table.c.id).outerjoin(stored, same).where(table.c.project_id == project, outdated)
    query = query.order_by(table.c.version.desc()) if ids is None else query.where(table.c.id.in_(ids))
    return [str(id) for id in connection.execute(query).scalars()]


def _store_views(connection: Connection, project: str, ids: Sequence[str]) -> None:
    # Checked again, because another request may have rebuilt the same views meanwhile.
    records = read_records(connection, project, _list_changed(connection, project, ids))
    rows: list[Object] = []
    details: list[Object] = []
    for record in records:
        view = record.view()
        place = {"project_id": project, "folder": view.id}
        about = {"version": record.row["version"], "status": view.status, "made_by": view_version()}
        rows.append({**place, **about, **{name: COLUMNS[name][1](view) for name in LISTED}})
        details.append({**place, "text": searched_text(view), "view": view.to_json()})
    store.upsert(connection, schema.experiment_view, rows, ("project_id", "folder"))
    store.upsert(connection, schema.experiment_detail, details, ("project_id", "folder"))


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
        self.reported = read_object(row["told"])
        self.row, self.runs, self.events, self.tally = row, runs, events, tally
        self.config = _with_runs(part(self.reported, "config"), runs)
        conclusion = part(self.reported, "conclusion")
        self.conclusion = conclusion if text(conclusion.get("verdict")) else {}
        status = text(self.reported.get("status"))
        self.ending = UNFINISHED if status in ("", *LIVE) else status
        if spend := plain_spend(part(self.reported, "spend")):
            self.spend = spend

    @property
    def experiment_id(self) -> str:
        return str(self.row["id"])

    @property
    def began(self) -> float | None:
        times = (self.start.time, number(self.reported.get("started")), self.row["received"])
        return next(at for at in times if at is not None)

    @property
    def ended(self) -> float | None:
        if self.ending == UNFINISHED:
            return None
        return number(self.reported.get("ended")) or next(
            (event.time for event in reversed(self.events) if event.kind == Kind.ENDED), None
        )

    @property
    def invalidated(self) -> str:
        return super().invalidated or text(self.reported.get(_FROM_THE_RECORD[-1]))

    def view(self) -> ExperimentView:
        """The view; fields that the client set replace computed ones, except `_FROM_THE_RECORD`."""
        running = self.ending == UNFINISHED and time.time() - self.row["heard"] < _QUIET_S
        computed = view(self, Liveness(running))
        reported: Object = {}
        for name, value in self.reported.items():
            if name == "tags" and self.tags is not None:  # edited tags replace the reported ones
                continue
            if name in ExperimentView.__slots__ and name not in _FROM_THE_RECORD:
                is_list = FIELD_TYPES["experiment"].get(name) is list
                cleaned: Any = [item for item in items(value) if isinstance(item, str)] if is_list else value
                reported |= {name: cleaned} if cleaned not in ("", [], {}) else {}
        return replace(computed, **reported, path="")


def read_records(connection: Connection, project: str, ids: Sequence[str]) -> list[ReportedRecord]:
    """Read the records of experiments for their views, with one query per table."""
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


def read_object(value: Any) -> Object:
    """Parse JSON text as an object; empty if it is none."""
    return {} if value in ("{}", "", None) else part({"it": json.loads(value)}, "it")


def _read_events(connection: Connection, project: str, ids: Sequence[str]) -> dict[str, list[Event]]:
    table = schema.event
    needed = (table.c.project_id == project, table.c.experiment_id.in_(ids), table.c.kind.in_(_EVENTS))
    events: dict[str, list[Event]] = {}
    for row in connection.execute(select(table).where(*needed).order_by(table.c.no)).mappings():
        event = Event(str(row["kind"]), str(row["id"]), row["time"], read_object(row["data"]))
        events.setdefault(str(row["experiment_id"]), []).append(event)
    return events


def _read_tallies(connection: Connection, project: str, ids: Sequence[str]) -> dict[str, Tally]:
    table = schema.spend_line
    chosen = (table.c.project_id == project, table.c.experiment_id.in_(ids))
    tallies: dict[str, Tally] = {}
    for id, line in connection.execute(
        select(table.c.experiment_id, table.c.line).where(*chosen).order_by(table.c.number)
    ):
        tallies.setdefault(str(id), Tally()).take(str(line).encode())
    return tallies


def _read_runs(
    connection: Connection, project: str, ids: Sequence[str], events: Mapping[str, Iterable[Event]]
) -> dict[str, list[RunRecord]]:
    run, latest, key, score = schema.run, schema.metric_latest, schema.metric_key, schema.score
    chosen = (run.c.project_id == project, run.c.experiment_id.in_(ids))
    last: dict[int, dict[str, tuple[float, float]]] = {}
    logged = select(latest.c.run_no, key.c.name, latest.c.step, latest.c.last).join(key, key.c.id == latest.c.key_id)
    for no, name, step, value in connection.execute(logged.join(run, run.c.no == latest.c.run_no).where(*chosen)):
        if value is not None:
            last.setdefault(no, {})[name] = (step, value)
    lines: dict[int, list[Object]] = {}
    scored = select(score.c.run_no, score.c.line).join(run, run.c.no == score.c.run_no).where(*chosen)
    for no, line in connection.execute(scored.order_by(score.c.step)):
        lines.setdefault(no, []).append(as_scored(read_object(line)))
    runs: dict[str, list[RunRecord]] = {}
    for row in connection.execute(select(run).where(*chosen).order_by(run.c.no)).mappings():
        findings = [
            event.text("text") for event in events.get(row["experiment_id"], ()) if event.text("arm") == row["arm"]
        ]
        record = _make_run(row, last.get(row["no"], {}), lines.get(row["no"], []), findings)
        runs.setdefault(str(row["experiment_id"]), []).append(record)
    return runs


def _make_run(
    row: RowMapping, last: Mapping[str, tuple[float, float]], lines: list[Object], findings: Sequence[str]
) -> RunRecord:
    """Build an arm; without reported metrics, its last logged values are used."""
    metrics = {name: value for name, raw in read_object(row["metrics"]).items() if (value := number(raw)) is not None}
    record = ReportedRun(
        Path(str(row["experiment_id"])),
        str(row["arm"]),
        str(row["run"]),
        row["seed"],
        STARTED if row["status"] == "running" else str(row["status"]),
        str(row["error"]),
        str(row["unscored"]),
        metrics or {name: value for name, (_, value) in last.items()},
        plain_spend(read_object(row["spend"])),
        findings=tuple(findings),
    )
    # Sets the cached properties that a `RunRecord` would read from its folder.
    reported: Object = {"result": None, "starts": [], "score_lines": lines, "checkpoints": []}
    reported["logged"] = {name: [point] for name, point in last.items()}
    reported["_progress"] = {"total_steps": row["total_steps"]}
    vars(record).update(reported, reported_step=row["step"], reported_config=read_object(row["config"]))
    return record


def _with_runs(config: Object, runs: Sequence[RunRecord]) -> Object:
    """Add the configs of runs, which scripts report separately, if the config has none."""
    if config_runs(config):
        return config
    configs = {run.run: {**run.config, "name": run.run} for run in reversed(runs) if run.config}
    return {**config, "runs": list(reversed(configs.values()))} if configs else config


def as_scored(line: Object) -> Object:
    """Convert a scoring to the format of `scores.jsonl`: scripts may send metrics as plain numbers."""
    metrics = part(line, "metrics")
    return {
        **line,
        "metrics": {name: value if isinstance(value, dict) else {"value": value} for name, value in metrics.items()},
    }
