"""Rows of the tables as what the read API speaks of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic import TypeAdapter
from sqlalchemy import Connection, and_, case, func, or_, select
from sqlalchemy.engine import RowMapping

from ....record.events import Kind
from ....record.values import number, part, text
from ...shapes import Event, Experiment, Live, Note
from ...views.curves import default_metric
from ...views.source import ArmData, Object
from . import schema

MOST_WORDS = 200


def arm_of(row: RowMapping, last: dict[str, float]) -> ArmData:
    """What is recorded of an arm; `last` are the last values it logged, where it did not sum them up itself."""
    failed = str(row["error"]) or "it failed, and no reason was given"
    problem = failed if row["status"] == "failed" else row["unscored"] and f"unscored: {row['unscored']}"
    told = {name: value for name, raw in read_object(row["metrics"]).items() if (value := number(raw)) is not None}
    return ArmData(
        arm=str(row["arm"]),
        run=str(row["run"]),
        seed=row["seed"],
        status=str(row["status"]),
        problem=str(problem),
        metrics=told or last,
        spend={name: value for name, raw in read_object(row["spend"]).items() if (value := number(raw)) is not None},
        step=row["step"],
        total_steps=row["total_steps"],
        checkpoints=read_objects(row["checkpoints"]),
        datasets=read_objects(row["datasets"]),
        benchmarks=read_objects(row["benchmarks"]),
    )


def event_of(row: RowMapping) -> Event:
    """A line of a journal."""
    return Event(id=str(row["id"]), time=row["time"], kind=str(row["kind"]), data=read_object(row["data"]))


def note_of(event: Event) -> Note:
    """A note, which is an event too."""
    return Note(id=event.id, text=text(event.data.get("text")), author=text(event.data.get("author")), time=event.time)


def count_words(words: Iterable[str]) -> dict[str, int]:
    """How often each word occurs."""
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def list_words(columns: Iterable[Any]) -> list[str]:
    """Every word of columns that hold lists."""
    return sorted({word for column in set(columns) for word in read_texts(column)})[:MOST_WORDS]


def read_object(value: Any) -> Object:
    """JSON text that holds an object."""
    return {} if value in ("{}", "", None) else part({"it": json.loads(value)}, "it")


def read_objects(value: Any) -> list[Object]:
    """The objects of JSON text that holds a list."""
    return [] if value == "[]" else [cast(Object, one) for one in json.loads(value) if isinstance(one, dict)]


def read_texts(value: Any) -> list[str]:
    """The texts of JSON text that holds a list."""
    return [] if value == "[]" else [one for one in json.loads(value) if isinstance(one, str)]


# The lines of the list of experiments. What is not running is made into a line once, and again when it has changed.

_QUIET_S = 900.0
"""Longest silence after which a running experiment is still taken to be alive."""
_RECENT = 40
_MOST_REMEMBERED = 20_000
_AS_TOLD = (
    *("id", "name", "verdict", "hypothesis", "sentence", "metric", "best_run", "best_score", "best_low", "best_high"),
    *("parent_id", "started", "ended", schema.experiment.c.invalidated.name, "n_notes", "version"),
)
_COUNTS = ("n_arms", "n_runs", "n_done", "n_failures")
_LISTS = ("tags", "models", "algorithms", "backends", "flags")
_COLUMNS = [schema.experiment.c[name] for name in (*_AS_TOLD, *_COUNTS, *_LISTS, "status", "mode", "spend", "received")]
_CHANGING = ("running", "killed")
"""Whether one of these still lives, and how far it is, changes without a new version of it."""
_CHECKED = TypeAdapter(list[Experiment])
"""Checks all lines of a page with one call: one for each takes longer than reading them."""

IDENTITY = (schema.experiment.c.id, schema.experiment.c.version, schema.experiment.c.status)
"""What has to be read of an experiment to know whether its line is still true."""


class Lines:
    """Makes and remembers lines; safe to ask from several threads."""

    def __init__(self) -> None:
        # Without a lock: a line belongs to one version, so two threads that both make it make the same.
        self._known: dict[tuple[str, str, int], Experiment] = {}

    def read(self, connection: Connection, project: str, rows: Sequence[RowMapping]) -> list[Experiment]:
        """The lines of the experiments whose IDENTITY was read, in that order."""
        wanted = [(project, str(row["id"]), int(row["version"])) for row in rows]
        found = {place[1]: line for place in wanted if (line := self._known.get(place)) is not None}
        made = _make_lines(connection, project, [id for _, id, _ in wanted if id not in found])
        for line in made:
            found[line.id] = line
        if len(self._known) > _MOST_REMEMBERED:
            self._known.clear()
        self._known |= {(project, line.id, line.version): line for line in made if line.status not in _CHANGING}
        return [found[id] for _, id, _ in wanted if id in found]


def _make_lines(connection: Connection, project: str, ids: Sequence[str]) -> list[Experiment]:
    """Lines of the list, with what the client did not say itself."""
    if not ids:
        return []
    table = schema.experiment
    mine = (table.c.project_id == project, table.c.id.in_(ids))
    rows = connection.execute(select(*_COLUMNS).where(*mine)).mappings().all()
    uncounted = [str(row["id"]) for row in rows if any(row[name] is None for name in _COUNTS)]
    counts = _count_runs(connection, project, uncounted) if uncounted else {}
    alive = _list_alive(connection, project, [str(row["id"]) for row in rows if row["status"] == "running"])
    lines = [_make_line(row, counts.get(row["id"]), alive) for row in rows]
    for line in lines:
        line["live"] = _read_live(connection, project, line["id"]) if line["status"] == "running" else None
    return _CHECKED.validate_python(lines)


def _make_line(row: RowMapping, counts: Sequence[Any] | None, alive: set[str]) -> Object:
    status = str(row["status"])
    if status == "running" and row["id"] not in alive and time.time() - row["received"] >= _QUIET_S:
        status = "killed"
    line: Object = {name: row[name] for name in _AS_TOLD}
    for name, counted in zip(_COUNTS, counts or (0, 0, 0, 0), strict=True):
        line[name] = int(counted or 0) if row[name] is None else row[name]
    for name in _LISTS:
        line[name] = read_texts(row[name])
    spend = read_object(row["spend"])
    line["spend"] = {name: value for name, raw in spend.items() if (value := number(raw)) is not None}
    line["status"], line["mode"] = status, "min" if row["mode"] == "min" else "max"
    return line


def _count_runs(connection: Connection, project: str, ids: Sequence[str]) -> dict[str, Sequence[Any]]:
    run = schema.run
    counted = (
        run.c.experiment_id,
        func.count(),
        func.count(run.c.run.distinct()),
        func.sum(case((and_(run.c.status == "completed", run.c.unscored == ""), 1), else_=0)),
        func.sum(case((or_(run.c.status == "failed", run.c.unscored != ""), 1), else_=0)),
    )
    mine = (run.c.project_id == project, run.c.experiment_id.in_(ids))
    found = connection.execute(select(*counted).where(*mine).group_by(run.c.experiment_id))
    return {str(row[0]): row[1:] for row in found}


def _list_alive(connection: Connection, project: str, ids: Sequence[str]) -> set[str]:
    """The running experiments that somebody reported about not long ago."""
    table = schema.stream
    mine = (table.c.project_id == project, table.c.experiment_id.in_(ids))
    heard = select(table.c.experiment_id).where(*mine, table.c.updated > time.time() - _QUIET_S)
    return {str(id) for id in connection.execute(heard).scalars()} if ids else set()


def _read_live(connection: Connection, project: str, id: str) -> Live:
    run, latest, key, point = schema.run, schema.metric_latest, schema.metric_key, schema.metric_point
    mine = (run.c.project_id == project, run.c.experiment_id == id, run.c.status == "started")
    arms = connection.execute(select(run.c.no, run.c.step, run.c.total_steps).where(*mine)).all()
    furthest = max(arms, key=lambda arm: arm[1] if arm[1] is not None else -1, default=None)
    if furthest is None:
        awaits = _awaits_approval(connection, project, id)
        return Live(arms_running=0, step=None, total_steps=None, metric="", recent=[], awaits_approval=awaits)
    logged = select(key.c.id, key.c.name).join(latest, latest.c.key_id == key.c.id)
    keys = {str(name): no for no, name in connection.execute(logged.where(latest.c.run_no == furthest[0])).all()}
    metric = default_metric(sorted(keys))
    same = (point.c.run_no == furthest[0], point.c.key_id == keys.get(metric, -1), point.c.value.is_not(None))
    recent = select(point.c.value).where(*same).order_by(point.c.step.desc()).limit(_RECENT)
    values = [float(value) for value in connection.execute(recent).scalars()][::-1]
    return Live(arms_running=len(arms), step=furthest[1], total_steps=furthest[2], metric=metric, recent=values)


def _awaits_approval(connection: Connection, project: str, id: str) -> bool:
    table, words = schema.event, (Kind.APPROVAL_AWAITED, Kind.APPROVED, Kind.REJECTED)
    mine = (table.c.project_id == project, table.c.experiment_id == id, table.c.kind.in_(words))
    last = select(table.c.kind).where(*mine).order_by(table.c.no.desc()).limit(1)
    return connection.execute(last).scalar() == Kind.APPROVAL_AWAITED
