"""The record of one project in the database, for the read API."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.engine import RowMapping

from ....record.events import Kind
from ....record.values import part, text
from ....record.view.model import ExperimentView
from ....record.view.question import is_score
from ...client.connection import new_id
from ...shapes.experiment import ControlRequest, Live, NewControlRequest, NewNote, SavedNote, ShownExperiment, Tags
from ...shapes.record import DataEntries, DataRows, Events, JournalAnchor, JournalLine, RolloutDetail, Rollouts
from ...views.curves import default_metric
from ...views.lists import RecordLists, shown
from ...views.rollouts import list_rollouts, read_rollout
from ...views.source import (
    PAGE_EVENTS,
    ArmFiles,
    Change,
    DataKind,
    ExperimentData,
    NotFound,
    Object,
    Points,
    RolloutQuery,
    read_cursor,
    write_cursor,
)
from . import schema, store
from .datasets import data_entries, data_rows
from .rollouts import StoredRollouts, read_prompts
from .views import StoredViews, ViewMaker, as_scored, read_object, read_records
from .writer import Writer

_RECENT = 40


class StoredRecords(RecordLists):
    """The record of one project; thread-safe."""

    def __init__(self, engine: Engine, writer: Writer, views: ViewMaker, project: str) -> None:
        self._engine, self._writer, self._maker, self.project = engine, writer, views, project
        self._in_project = schema.experiment.c.project_id == project

    # -- lists ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def views(self) -> Generator[StoredViews]:
        """The current views."""
        self._maker.refresh(self.project)
        with self._engine.connect() as connection:
            yield StoredViews(connection, self.project, self._maker)

    def show(self, view: ExperimentView) -> ShownExperiment:
        line = view if isinstance(view, ShownExperiment) else shown(view, 0, line=True)
        return replace(line, live=self._live(view)) if view.is_live else line

    def _live(self, view: ExperimentView) -> Live | None:
        if not view.is_live:
            return None
        with self._engine.connect() as connection:
            return _read_live(connection, self.project, view)

    # -- one experiment ------------------------------------------------------------------------------------------------

    def experiment(self, id: str) -> ExperimentData:
        with self.views() as views:
            stored = views.read(id)
        with self._engine.connect() as connection:
            version = int(self._row(connection, id)["version"])
            events = self._events(connection, id, PAGE_EVENTS)
            requests = self._requests(connection, id)
            [record] = read_records(connection, self.project, [id])
        view = stored or record.view()
        return ExperimentData(
            experiment=shown(view, version, self._live(view)),
            config=record.config or {},
            conclusion=part(record.reported, "conclusion"),
            conclusion_text=text(record.reported.get("conclusion_text")),
            events=events,
            requests=requests,
            commands={key: str(value) for key, value in part(record.reported, "commands").items()},
        )

    def arm_files(self, id: str, arms: Sequence[str]) -> dict[str, ArmFiles]:
        """The checkpoints, datasets and benchmarks of arms; clients send no texts."""
        run = schema.run
        columns = (run.c.arm, run.c.checkpoints, run.c.datasets, run.c.benchmarks)
        same_experiment = (run.c.project_id == self.project, run.c.experiment_id == id)
        with self._engine.connect() as connection:
            rows = connection.execute(select(*columns).where(*same_experiment)).all()
        files = {
            str(arm): ArmFiles(_read_objects(checkpoints), _read_objects(datasets), _read_objects(benchmarks))
            for arm, checkpoints, datasets, benchmarks in rows
        }
        return {arm: files[arm] for arm in arms}

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
        points: dict[str, Points] = {}
        with self._engine.connect() as connection:
            chosen_arms = (run.c.project_id == self.project, run.c.experiment_id == id, run.c.arm.in_(arms))
            numbers = connection.execute(select(run.c.no, run.c.arm).where(*chosen_arms)).all()
            metric_id = connection.execute(select(key.c.id).where(key.c.name == metric)).scalar()
            for no, arm in numbers if metric_id is not None else ():
                same = (point.c.run_no == no, point.c.key_id == metric_id)
                rows = connection.execute(select(point.c.step, point.c.value).where(*same).order_by(point.c.step)).all()
                if rows:
                    points[str(arm)] = Points([row[0] for row in rows], [row[1] for row in rows])
        return points

    def scores(self, id: str) -> dict[str, list[Object]]:
        run, score = schema.run, schema.score
        query = select(run.c.arm, score.c.line).join(run, run.c.no == score.c.run_no)
        query = query.where(run.c.project_id == self.project, run.c.experiment_id == id).order_by(score.c.step)
        scores: dict[str, list[Object]] = {}
        with self._engine.connect() as connection:
            self._row(connection, id)
            for arm, line in connection.execute(query):
                scores.setdefault(str(arm), []).append(as_scored(read_object(line)))
        return scores

    def prompts(self, id: str, split: str, name: str) -> dict[str, str]:
        with self._engine.connect() as connection:
            return read_prompts(connection, self.project, id, split, name)

    def rollouts(self, id: str, query: RolloutQuery) -> Rollouts:
        with self._engine.connect() as connection:
            self._row(connection, id)
            return list_rollouts(StoredRollouts(connection, self.project, id), query)

    def rollout(self, id: str, rollout: str) -> RolloutDetail:
        with self._engine.connect() as connection:
            return read_rollout(StoredRollouts(connection, self.project, id), rollout)

    def events(self, id: str, cursor: str, limit: int) -> Events:
        table = schema.event
        after = int(read_cursor(cursor, int)[0]) if cursor else -1
        later = (table.c.project_id == self.project, table.c.experiment_id == id, table.c.no > after)
        with self._engine.connect() as connection:
            self._row(connection, id)
            rows = (
                connection.execute(select(table).where(*later).order_by(table.c.no).limit(limit + 1)).mappings().all()
            )
        page = rows[:limit]
        following = write_cursor(page[-1]["no"]) if len(rows) > limit and page else None
        return Events(items=[_event(row) for row in page], next=following)

    def spend_lines(self, id: str) -> list[Object]:
        table = schema.spend_line
        same_experiment = (table.c.project_id == self.project, table.c.experiment_id == id)
        query = select(table.c.line).where(*same_experiment).order_by(table.c.number)
        with self._engine.connect() as connection:
            return [read_object(line) for line in connection.execute(query).scalars()]

    def anchors(self, id: str) -> list[JournalAnchor]:
        table = schema.anchor
        same_experiment = (table.c.project_id == self.project, table.c.experiment_id == id)
        query = select(table.c.events, table.c.head, table.c.at).where(*same_experiment).order_by(table.c.no)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [JournalAnchor(experiment=id, events=events, head=head, time=at) for events, head, at in rows]

    # -- changes -------------------------------------------------------------------------------------------------------

    def add_note(self, id: str, note: NewNote) -> SavedNote:
        saved = SavedNote(id=new_id(), text=note.text, author=note.author, time=time.time())

        def write(connection: Connection) -> None:
            self._row(connection, id)
            store.put_event(connection, self.project, id, {**saved.model_dump(), "kind": "note"})
            store.touch(connection, self.project, [id])

        self._writer.call(write)
        return saved

    def set_tags(self, id: str, tags: Tags) -> Tags:
        event = {"id": new_id(), "time": time.time(), "kind": Kind.TAGGED, "tags": tags.tags}

        def write(connection: Connection) -> None:
            self._row(connection, id)
            store.put_event(connection, self.project, id, event)
            store.touch(connection, self.project, [id])

        self._writer.call(write)
        return tags

    def delete(self, id: str) -> None:
        def write(connection: Connection) -> None:
            self._row(connection, id)
            store.delete_experiment(connection, self.project, id)

        self._writer.call(write)

    def add_request(self, id: str, request: NewControlRequest) -> ControlRequest:
        saved = ControlRequest(id=new_id(), time=time.time(), state="open", answer="", **request.model_dump())

        def write(connection: Connection) -> None:
            self._row(connection, id)
            values = {"project_id": self.project, "experiment_id": id, **saved.model_dump()}
            connection.execute(insert(schema.request).values(**values))
            store.touch(connection, self.project, [id])

        self._writer.call(write)
        return saved

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
        query = select(table.c.id, table.c.version).where(self._in_project, table.c.version > since)
        with self._engine.connect() as connection:
            # the next call continues from the last version
            rows = connection.execute(query.order_by(table.c.version).limit(1000)).all()
        return [Change("experiment", str(id), int(version)) for id, version in rows]

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _version(self, connection: Connection) -> int:
        query = select(schema.project.c.version).where(schema.project.c.id == self.project)
        return int(connection.execute(query).scalar() or 0)

    def _row(self, connection: Connection, id: str) -> RowMapping:
        rows = connection.execute(
            select(schema.experiment).where(self._in_project, schema.experiment.c.id == id)
        ).mappings()
        row = rows.first()
        if row is None:
            raise NotFound("experiment", id)
        return row

    def _events(self, connection: Connection, id: str, kinds: Sequence[str]) -> list[JournalLine]:
        table = schema.event
        same_kinds = (table.c.project_id == self.project, table.c.experiment_id == id, table.c.kind.in_(kinds))
        rows = connection.execute(select(table).where(*same_kinds).order_by(table.c.no)).mappings().all()
        return [_event(row) for row in rows]

    def _requests(self, connection: Connection, id: str) -> list[ControlRequest]:
        table = schema.request
        same_experiment = (table.c.project_id == self.project, table.c.experiment_id == id)
        rows = connection.execute(select(table).where(*same_experiment).order_by(table.c.time)).mappings().all()
        return [ControlRequest(**{name: row[name] for name in ControlRequest.model_fields}) for row in rows]


def _event(row: RowMapping) -> JournalLine:
    """Convert a row to a journal event."""
    return JournalLine(id=str(row["id"]), time=row["time"], kind=str(row["kind"]), data=read_object(row["data"]))


def _read_objects(value: Any) -> list[Object]:
    """The objects in JSON text with a list."""
    return [] if value == "[]" else [cast(Object, item) for item in json.loads(value) if isinstance(item, dict)]


def _read_live(connection: Connection, project: str, view: ExperimentView) -> Live:
    run, latest, key, point = schema.run, schema.metric_latest, schema.metric_key, schema.metric_point
    running_arms = (run.c.project_id == project, run.c.experiment_id == view.id, run.c.status == "started")
    arms = connection.execute(select(run.c.no, run.c.step, run.c.total_steps).where(*running_arms)).all()
    furthest = max(arms, key=lambda arm: arm[1] if arm[1] is not None else -1, default=None)
    if furthest is None:
        return Live(arms_running=0, step=None, total_steps=None, metric="", recent=[])
    logged = select(key.c.id, key.c.name).join(latest, latest.c.key_id == key.c.id)
    keys = {str(name): no for no, name in connection.execute(logged.where(latest.c.run_no == furthest[0])).all()}
    metric = default_metric(sorted(keys))
    same = (point.c.run_no == furthest[0], point.c.key_id == keys.get(metric, -1), point.c.value.is_not(None))
    recent = select(point.c.value).where(*same).order_by(point.c.step.desc()).limit(_RECENT)
    values = [float(value) for value in connection.execute(recent).scalars()][::-1]
    return Live(arms_running=len(arms), step=furthest[1], total_steps=furthest[2], metric=metric, recent=values)
