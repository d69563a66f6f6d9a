"""The record of one project in the database, as the read API asks for it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, case, func, insert, or_, select
from sqlalchemy.engine import RowMapping

from ....history.index import NO_VERDICT, ORDERS
from ....record.events import Kind
from ....record.values import number
from ....record.view.question import is_score
from ...client.connection import new_id
from ...shapes import (
    Anchor,
    ControlRequest,
    DataEntries,
    DataRows,
    Event,
    Events,
    Experiment,
    Experiments,
    NewControlRequest,
    NewNote,
    Overview,
    RolloutDetail,
    Rollouts,
    SavedNote,
)
from ...views.source import (
    ArmFiles,
    BadQuery,
    Change,
    DataKind,
    ExperimentData,
    ExperimentQuery,
    NotFound,
    Object,
    Points,
    RolloutQuery,
    read_cursor,
    write_cursor,
)
from . import schema, store
from .datasets import data_entries, data_rows
from .reported import read_records
from .rollouts import list_rollouts, read_rollout
from .rows import IDENTITY, Lines, count_words, event_of, list_words, make_views, note_of, read_object, read_objects
from .writer import Writer

_MOST_RUNNING = 40
"""Running experiments of the overview."""
# All ascending, those without a score last: one comparison then finds what comes after a cursor in any order.
_KEYS: dict[str, ColumnElement[Any]] = {
    "newest": -func.coalesce(schema.experiment.c.started, schema.experiment.c.received),
    "oldest": func.coalesce(schema.experiment.c.started, schema.experiment.c.received),
    "score": case(
        (schema.experiment.c.best_score.is_(None), 1e308),
        (schema.experiment.c.mode == "min", schema.experiment.c.best_score),
        else_=-schema.experiment.c.best_score,
    ),
    "spend": -func.coalesce(schema.experiment.c.usd, 0.0),
    "name": schema.experiment.c.name,
}


class StoredRecords:
    """One project; safe to ask from several threads."""

    def __init__(self, engine: Engine, writer: Writer, lines: Lines, project: str) -> None:
        self._engine, self._writer, self._lines, self.project = engine, writer, lines, project
        self._mine = schema.experiment.c.project_id == project

    # -- lists ---------------------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        table = schema.experiment
        columns = (table.c.status, table.c.verdict, table.c.tags, table.c.models, table.c.algorithms, table.c.spend)
        with self._engine.connect() as connection:
            rows = connection.execute(select(*columns).where(self._mine)).all()
            is_running = select(*IDENTITY).where(self._mine, table.c.status == "running").limit(_MOST_RUNNING)
            running = self._read_lines(connection, is_running)
            version = self._version(connection)
        spend: dict[str, float] = {}
        for row in rows:
            for name, value in read_object(row[5]).items():
                spend[name] = spend.get(name, 0.0) + (number(value) or 0.0)
        return Overview(
            total=len(rows),
            by_status=count_words(str(row[0]) for row in rows),
            by_verdict=count_words(str(row[1]) or NO_VERDICT for row in rows),
            spend=spend,
            tags=list_words(row[2] for row in rows),
            models=list_words(row[3] for row in rows),
            algorithms=list_words(row[4] for row in rows),
            running=running,
            version=version,
        )

    def list_experiments(self, query: ExperimentQuery) -> Experiments:
        if query.sort not in ORDERS:
            raise BadQuery(f"sort is {query.sort[:40]!r}. It can be {', '.join(ORDERS)}.")
        table, key = schema.experiment, _KEYS[query.sort]
        conditions = [self._mine, *_conditions(query)]
        page = select(*IDENTITY, key.label("place")).where(*conditions)
        if query.cursor:
            kind = str if query.sort == "name" else (int, float)
            place, id = read_cursor(query.cursor, kind, str)
            page = page.where(or_(key > place, and_(key == place, table.c.id > id)))
        # one more than is shown: whether there is another page is known without counting
        page = page.order_by(key, table.c.id).limit(query.limit + 1).offset(0 if query.cursor else query.offset)
        with self._engine.connect() as connection:
            rows = connection.execute(page).mappings().all()
            total = int(connection.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one())
            shown = rows[: query.limit]
            found = self._lines.read(connection, self.project, shown)
        more = len(rows) > query.limit and shown
        following = write_cursor(shown[-1]["place"], shown[-1]["id"]) if more else None
        return Experiments(items=found, next=following, total=total)

    def experiments(self, ids: Sequence[str]) -> list[Experiment]:
        with self._engine.connect() as connection:
            return self._read_lines(connection, select(*IDENTITY).where(self._mine, schema.experiment.c.id.in_(ids)))

    # -- one experiment ------------------------------------------------------------------------------------------------

    def experiment(self, id: str) -> ExperimentData:
        with self._engine.connect() as connection:
            row = self._row(connection, id)
            events = self._events(connection, id, (Kind.NOTE, Kind.STARTED, Kind.LOOKED))
            requests = self._requests(connection, id)
            [record] = read_records(connection, self.project, [id])
            [experiment] = make_views(connection, self.project, [record])
        started = next((event for event in events if event.kind == Kind.STARTED), None)
        return ExperimentData(
            experiment=experiment,
            config=record.config or {},
            conclusion=read_object(row["conclusion"]),
            conclusion_text=str(row["conclusion_text"]),
            notes=[note_of(event) for event in events if event.kind == Kind.NOTE],
            requests=requests,
            commands={key: str(value) for key, value in read_object(row["commands"]).items()},
            registered_at=started.time if started and started.data.get("hypothesis_sha256") else None,
            looks=[event.data for event in events if event.kind == Kind.LOOKED],
        )

    def arm_files(self, id: str, arms: Sequence[str]) -> dict[str, ArmFiles]:
        """Clients send checkpoints, datasets and benchmarks, and no texts."""
        run = schema.run
        columns = (run.c.arm, run.c.checkpoints, run.c.datasets, run.c.benchmarks)
        mine = (run.c.project_id == self.project, run.c.experiment_id == id)
        with self._engine.connect() as connection:
            rows = connection.execute(select(*columns).where(*mine)).all()
        found = {
            str(arm): ArmFiles(read_objects(checkpoints), read_objects(datasets), read_objects(benchmarks))
            for arm, checkpoints, datasets, benchmarks in rows
        }
        return {arm: found[arm] for arm in arms}

    def metric_names(self, id: str) -> list[str]:
        run, latest, key = schema.run, schema.metric_latest, schema.metric_key
        with self._engine.connect() as connection:
            self._row(connection, id)
            query = (
                select(key.c.name)
                .distinct()
                .join(latest, latest.c.key_id == key.c.id)
                .join(run, run.c.no == latest.c.run_no)
                .where(run.c.project_id == self.project, run.c.experiment_id == id)
            )
            names = [str(name) for name in connection.execute(query).scalars()]
        return sorted(names, key=lambda name: (is_score(name), name))

    def points(self, id: str, arms: Sequence[str], metric: str) -> dict[str, Points]:
        run, point, key = schema.run, schema.metric_point, schema.metric_key
        found: dict[str, Points] = {}
        with self._engine.connect() as connection:
            mine = (run.c.project_id == self.project, run.c.experiment_id == id, run.c.arm.in_(arms))
            numbers = connection.execute(select(run.c.no, run.c.arm).where(*mine)).all()
            metric_id = connection.execute(select(key.c.id).where(key.c.name == metric)).scalar()
            for no, arm in numbers if metric_id is not None else ():
                same = (point.c.run_no == no, point.c.key_id == metric_id)
                rows = connection.execute(select(point.c.step, point.c.value).where(*same).order_by(point.c.step)).all()
                if rows:
                    found[str(arm)] = Points([row[0] for row in rows], [row[1] for row in rows])
        return found

    def scores(self, id: str) -> dict[str, list[Object]]:
        run, score = schema.run, schema.score
        query = select(run.c.arm, score.c.line).join(run, run.c.no == score.c.run_no)
        query = query.where(run.c.project_id == self.project, run.c.experiment_id == id).order_by(score.c.step)
        found: dict[str, list[Object]] = {}
        with self._engine.connect() as connection:
            self._row(connection, id)
            for arm, line in connection.execute(query):
                found.setdefault(str(arm), []).append(read_object(line))
        return found

    def rollouts(self, id: str, query: RolloutQuery) -> Rollouts:
        with self._engine.connect() as connection:
            self._row(connection, id)
            return list_rollouts(connection, self.project, id, query)

    def rollout(self, id: str, rollout: str) -> RolloutDetail:
        with self._engine.connect() as connection:
            return read_rollout(connection, self.project, id, rollout)

    def events(self, id: str, cursor: str, limit: int) -> Events:
        table = schema.event
        after = int(read_cursor(cursor, int)[0]) if cursor else -1
        mine = (table.c.project_id == self.project, table.c.experiment_id == id, table.c.no > after)
        with self._engine.connect() as connection:
            self._row(connection, id)
            rows = connection.execute(select(table).where(*mine).order_by(table.c.no).limit(limit + 1)).mappings().all()
        page = rows[:limit]
        following = write_cursor(page[-1]["no"]) if len(rows) > limit and page else None
        return Events(items=[event_of(row) for row in page], next=following)

    def spend_lines(self, id: str) -> list[Object]:
        table = schema.spend_line
        mine = (table.c.project_id == self.project, table.c.experiment_id == id)
        asked = select(table.c.line).where(*mine).order_by(table.c.number)
        with self._engine.connect() as connection:
            return [read_object(line) for line in connection.execute(asked).scalars()]

    def anchors(self, id: str) -> list[Anchor]:
        table = schema.anchor
        mine = (table.c.project_id == self.project, table.c.experiment_id == id)
        asked = select(table.c.events, table.c.head, table.c.at).where(*mine).order_by(table.c.no)
        with self._engine.connect() as connection:
            found = connection.execute(asked).all()
        return [Anchor(experiment=id, events=events, head=head, time=at) for events, head, at in found]

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_note(self, id: str, note: NewNote) -> SavedNote:
        made = SavedNote(id=new_id(), text=note.text, author=note.author, time=time.time())

        def write(connection: Connection) -> None:
            self._row(connection, id)
            store.put_event(connection, self.project, id, {**made.model_dump(), "kind": "note"})
            store.touch(connection, self.project, [id])

        self._writer.call(write)
        return made

    def add_request(self, id: str, request: NewControlRequest) -> ControlRequest:
        made = ControlRequest(id=new_id(), time=time.time(), state="open", answer="", **request.model_dump())

        def write(connection: Connection) -> None:
            self._row(connection, id)
            values = {"project_id": self.project, "experiment_id": id, **made.model_dump()}
            connection.execute(insert(schema.request).values(**values))
            store.touch(connection, self.project, [id])

        self._writer.call(write)
        return made

    def data_entries(self, kind: DataKind, name: str, limit: int, cursor: str) -> DataEntries:
        with self._engine.connect() as connection:
            return data_entries(connection, self.project, kind, name, limit, cursor)

    def data_rows(self, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows:
        with self._engine.connect() as connection:
            return data_rows(connection, self.project, kind, id, limit, cursor)

    def version(self) -> int:
        with self._engine.connect() as connection:
            return self._version(connection)

    def changes(self, since: int) -> list[Change]:
        table = schema.experiment
        query = select(table.c.id, table.c.version).where(self._mine, table.c.version > since)
        with self._engine.connect() as connection:
            # the rest comes with the next look, which goes on from the last version here
            rows = connection.execute(query.order_by(table.c.version).limit(1000)).all()
        return [Change("experiment", str(id), int(version)) for id, version in rows]

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _version(self, connection: Connection) -> int:
        query = select(schema.project.c.version).where(schema.project.c.id == self.project)
        return int(connection.execute(query).scalar() or 0)

    def _row(self, connection: Connection, id: str) -> RowMapping:
        row = connection.execute(select(schema.experiment).where(self._mine, schema.experiment.c.id == id)).mappings()
        found = row.first()
        if found is None:
            raise NotFound("experiment", id)
        return found

    def _read_lines(self, connection: Connection, query: Any) -> list[Experiment]:
        return self._lines.read(connection, self.project, connection.execute(query).mappings().all())

    def _events(self, connection: Connection, id: str, kinds: Sequence[str]) -> list[Event]:
        table = schema.event
        mine = (table.c.project_id == self.project, table.c.experiment_id == id, table.c.kind.in_(kinds))
        rows = connection.execute(select(table).where(*mine).order_by(table.c.no)).mappings().all()
        return [event_of(row) for row in rows]

    def _requests(self, connection: Connection, id: str) -> list[ControlRequest]:
        table = schema.request
        mine = (table.c.project_id == self.project, table.c.experiment_id == id)
        rows = connection.execute(select(table).where(*mine).order_by(table.c.time)).mappings().all()
        return [ControlRequest(**{name: row[name] for name in ControlRequest.model_fields}) for row in rows]


def _conditions(query: ExperimentQuery) -> list[ColumnElement[bool]]:
    table = schema.experiment
    found: list[ColumnElement[bool]] = []
    if query.statuses:
        found.append(table.c.status.in_(query.statuses))
    if query.verdicts:
        found.append(table.c.verdict.in_(["" if verdict == NO_VERDICT else verdict for verdict in query.verdicts]))
    if query.parent:
        found.append(table.c.parent_id == query.parent)
    for column, word in [*((table.c.tags, tag) for tag in query.tags), (table.c.algorithms, query.algorithm)]:
        if word:
            # with its quotes, as the column holds a JSON list: a whole word, and not the beginning of another
            quoted = json.dumps(word.lower(), ensure_ascii=False)
            found.append(func.lower(column).contains(quoted, autoescape=True))
    if query.model:
        found.append(func.lower(table.c.models).contains(query.model.lower(), autoescape=True))
    found += [table.c.words.contains(word, autoescape=True) for word in query.search.casefold().split()]
    return found
