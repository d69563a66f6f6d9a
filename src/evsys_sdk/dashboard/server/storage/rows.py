"""Rows of the tables as what the read API speaks of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from sqlalchemy import Connection, select
from sqlalchemy.engine import RowMapping

from ....record.values import UNFINISHED, part, text
from ....record.view.model import ExperimentView
from ...shapes import Event, Experiment, Live, SavedNote
from ...views.curves import default_metric
from ...views.source import Object, lighten
from . import schema
from .reported import ReportedRecord, read_records

MOST_WORDS = 200


def event_of(row: RowMapping) -> Event:
    """A line of a journal."""
    return Event(id=str(row["id"]), time=row["time"], kind=str(row["kind"]), data=read_object(row["data"]))


def note_of(event: Event) -> SavedNote:
    """A note, which is an event too."""
    return SavedNote(
        id=event.id, text=text(event.data.get("text")), author=text(event.data.get("author")), time=event.time
    )


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


# Views of experiments. What is not running is made into a view once, and again when it has changed.

_QUIET_S = 900.0
"""Longest silence after which a running experiment is still taken to be alive."""
_RECENT = 40
_MOST_REMEMBERED = 20_000
_CHANGING = ("running", "waiting", "killed")
"""Whether one of these still lives, and how far it is, changes without a new version of it."""

IDENTITY = (schema.experiment.c.id, schema.experiment.c.version, schema.experiment.c.status)
"""What has to be read of an experiment to know whether its line is still true."""


class Lines:
    """Makes and remembers the lines of lists; safe to ask from several threads."""

    def __init__(self) -> None:
        # Without a lock: a line belongs to one version, so two threads that both make it make the same.
        self._known: dict[tuple[str, str, int], Experiment] = {}

    def read(self, connection: Connection, project: str, rows: Sequence[RowMapping]) -> list[Experiment]:
        """The lines of the experiments whose IDENTITY was read, in that order."""
        wanted = [(project, str(row["id"]), int(row["version"])) for row in rows]
        found = {place[1]: line for place in wanted if (line := self._known.get(place)) is not None}
        records = read_records(connection, project, [id for _, id, _ in wanted if id not in found])
        made = [lighten(one) for one in make_views(connection, project, records)]
        for line in made:
            found[line.id] = line
        if len(self._known) > _MOST_REMEMBERED:
            self._known.clear()
        self._known |= {(project, line.id, line.version): line for line in made if line.status not in _CHANGING}
        return [found[id] for _, id, _ in wanted if id in found]


def make_views(connection: Connection, project: str, records: Sequence[ReportedRecord]) -> list[Experiment]:
    """The views of some experiments, made by the same code as those of records on disk."""
    running = [record.row["id"] for record in records if record.ending == UNFINISHED]
    alive = _list_alive(connection, project, running)
    found: list[Experiment] = []
    for record in records:
        row = record.row
        lives = record.ending == UNFINISHED and (row["id"] in alive or time.time() - row["received"] < _QUIET_S)
        one = record.view(running=lives)
        live = _read_live(connection, project, one.id, awaits=record.awaits_approval) if one.is_live else None
        values = {name: getattr(one, name) for name in ExperimentView.__slots__}
        found.append(Experiment(**values, n_notes=len(one.notes), version=int(row["version"]), live=live))
    return found


def _list_alive(connection: Connection, project: str, ids: Sequence[str]) -> set[str]:
    """The running experiments that somebody reported about not long ago."""
    table = schema.stream
    mine = (table.c.project_id == project, table.c.experiment_id.in_(ids))
    heard = select(table.c.experiment_id).where(*mine, table.c.updated > time.time() - _QUIET_S)
    return {str(id) for id in connection.execute(heard).scalars()} if ids else set()


def _read_live(connection: Connection, project: str, id: str, *, awaits: bool) -> Live:
    run, latest, key, point = schema.run, schema.metric_latest, schema.metric_key, schema.metric_point
    mine = (run.c.project_id == project, run.c.experiment_id == id, run.c.status == "started")
    arms = connection.execute(select(run.c.no, run.c.step, run.c.total_steps).where(*mine)).all()
    furthest = max(arms, key=lambda arm: arm[1] if arm[1] is not None else -1, default=None)
    if furthest is None:
        return Live(arms_running=0, step=None, total_steps=None, metric="", recent=[], awaits_approval=awaits)
    logged = select(key.c.id, key.c.name).join(latest, latest.c.key_id == key.c.id)
    keys = {str(name): no for no, name in connection.execute(logged.where(latest.c.run_no == furthest[0])).all()}
    metric = default_metric(sorted(keys))
    same = (point.c.run_no == furthest[0], point.c.key_id == keys.get(metric, -1), point.c.value.is_not(None))
    recent = select(point.c.value).where(*same).order_by(point.c.step.desc()).limit(_RECENT)
    values = [float(value) for value in connection.execute(recent).scalars()][::-1]
    return Live(arms_running=len(arms), step=furthest[1], total_steps=furthest[2], metric=metric, recent=values)
