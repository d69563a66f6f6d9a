"""The experiments of a project together with those that scripts reported offline.

A script with `EVSYS_OFFLINE=1` writes its records to the mirror only. They are ingested into a database next to the
mirror, by the server's code, and shown among the experiments of the project. The database can be deleted at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from ...errors import EvsysError
from ...history.attention import AttentionItem
from ...history.cache import SEARCHED, Row
from ...history.index import HistoryIndex
from ...log import get_logger
from ...record.view.model import ExperimentView
from ..client.client import DashboardClient
from ..client.mirror import StreamReader, is_sent, read_header, streams
from ..server.auth import LOCAL, make_project
from ..server.ingest.ingest import Ingest
from ..server.storage import schema
from ..server.storage.database import open_database
from ..server.storage.records import StoredRecords
from ..server.storage.views import StoredViews, ViewMaker
from ..server.storage.writer import Writer
from ..shapes.experiment import ControlRequest, NewControlRequest, NewNote, Progress, SavedNote, ShownExperiment, Tags
from ..views.lists import RecordLists
from ..views.source import BadQuery, Change, RecordSource
from .records import LocalRecords

_DATABASE = "local.sqlite3"


class ProjectRecords(RecordLists):
    """The experiments that a project recorded and those that scripts reported offline; thread-safe."""

    def __init__(self, local: LocalRecords, mirror: Path) -> None:
        self._local, self._mirror = local, mirror
        self._stored: StoredRecords | None = None
        self._sizes: dict[Path, int] = {}
        self._changed: dict[str, int] = {}
        """Id of an experiment that a script reported -> its last change in milliseconds."""
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        """Delegate other methods by their first argument, the experiment id; `data_*` methods use the local record."""
        if name.startswith("data_"):
            return getattr(self._local, name)

        def call(id: str, *more: Any) -> Any:
            return getattr(self._of(id), name)(id, *more)

        return call

    @contextmanager
    def views(self) -> Generator[_Joined]:
        with ExitStack() as stack:
            index = stack.enter_context(self._local.views())
            stored = self._read_mirror()
            yield _Joined(index, stack.enter_context(stored.views()) if stored else None)

    def show(self, view: ExperimentView) -> ShownExperiment:
        return self._local.show(view) if view.path or self._stored is None else self._stored.show(view)

    def progress(self, n_indexed: int) -> Progress | None:
        return self._local.progress(n_indexed)

    def attention(self, views: Sequence[ExperimentView]) -> list[AttentionItem]:
        return self._local.attention(views)

    def version(self) -> int:
        return max([self._local.version(), *self._changed.values()])

    def changes(self, since: int) -> list[Change]:
        self._read_mirror()
        reported = [Change("experiment", id, at) for id, at in self._changed.items() if at > since]
        return sorted([*self._local.changes(since), *reported], key=lambda change: change.version)

    def add_note(self, id: str, note: NewNote) -> SavedNote:
        if self._of(id) is self._local:
            return self._local.add_note(id, note)
        with DashboardClient(offline=True, log_dir=self._mirror.parent) as client:
            note_id = client.add_note(id, note.text, author=note.author)
        return SavedNote(id=note_id, text=note.text, author=note.author, time=time.time())

    def set_tags(self, id: str, tags: Tags) -> Tags:
        if self._of(id) is self._local:
            return self._local.set_tags(id, tags)
        with DashboardClient(offline=True, log_dir=self._mirror.parent) as client:
            client.update_experiment(id, tags=tags.tags)
        return tags

    def add_request(self, id: str, request: NewControlRequest) -> ControlRequest:
        if self._of(id) is not self._local:
            raise BadQuery("a script that reports offline receives no requests. Stop it where it runs.")
        return self._local.add_request(id, request)

    def close(self) -> None:
        """Close the database, if there is one."""
        if self._stored is not None:
            self._writer.close()
            self._engine.dispose()

    def _of(self, id: str) -> RecordSource:
        """The source of an experiment; the project's own record takes precedence."""
        stored = self._read_mirror()
        if stored is None or id not in self._changed:
            return self._local
        with self._local.views() as index:
            return self._local if index.rows(("id",), "id = ?", [id]) else stored

    def _read_mirror(self) -> StoredRecords | None:
        """Ingest new records of the mirror; streams that were sent to a server are shown by that server."""
        with self._lock:
            for path in streams(self._mirror) if self._mirror.is_dir() else ():
                size = path.stat().st_size
                if self._sizes.get(path) != size and not is_sent(path):
                    self._sizes[path] = size
                    try:
                        self._ingest_stream(path)
                    except (EvsysError, OSError) as error:
                        get_logger(__name__).warning("%s is not shown: %s", path, error)
            return self._stored

    def _ingest_stream(self, path: Path) -> None:
        read_header(path)  # raises if it is no stream
        if self._stored is None:
            engine = open_database(str(self._mirror / _DATABASE))
            self._writer, self._ingest, self._engine = Writer(engine), Ingest(), engine
            self._writer.after_rollback.append(self._ingest.forget)
            self._writer.call(lambda connection: make_project(connection, LOCAL))
            self._stored = StoredRecords(engine, self._writer, ViewMaker(engine, self._writer), LOCAL)
            self._note_changes(self._stored, 0)
        before, reader, table = self._stored.version(), StreamReader(path), schema.stream
        with self._engine.connect() as connection:
            same_stream = (table.c.project_id == LOCAL, table.c.id == reader.stream)
            next_seq = connection.execute(select(table.c.next_seq).where(*same_stream)).scalar()
        reader.go_to(int(next_seq or 0))
        while (batch := reader.read()) is not None:
            lines = batch.data.removesuffix(b"\n").split(b"\n")
            place = (reader.stream, batch.first, lines)
            self._writer.call(lambda connection, place=place: self._ingest.take(connection, LOCAL, *place))
            reader.advance(batch)
        reader.close()
        self._note_changes(self._stored, before)

    def _note_changes(self, stored: StoredRecords, since: int) -> None:
        now = int(time.time() * 1000)
        self._changed |= {change.id: now for change in stored.changes(since)}


class _Joined:
    """Two tables of views joined; for an experiment in both, the project's own view is used."""

    text = SEARCHED

    def __init__(self, index: HistoryIndex, stored: StoredViews | None) -> None:
        self._index, self._stored = index, stored
        self._hidden: list[str] = []
        if stored is not None:
            ids = [row[0] for _, rows in stored.rows_by_root(("folder",)) for row in rows]
            self._hidden = [row[0] for row in index.rows(("id",), f"id IN ({','.join('?' * len(ids))})", ids)]

    def rows_by_root(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[tuple[Any, Sequence[Row]]]:
        rows: list[tuple[Any, Sequence[Row]]] = [*self._index.rows_by_root(columns, condition, values, tail)]
        if self._stored is not None:
            stored_condition = condition.replace(SEARCHED, self._stored.text)
            if self._hidden:
                other = f"folder NOT IN ({','.join('?' * len(self._hidden))})"
                stored_condition = f"({stored_condition}) AND {other}" if stored_condition else other
            rows += self._stored.rows_by_root(columns, stored_condition, [*values, *self._hidden], tail)
        return rows

    def load(self, places: Sequence[tuple[str, int]]) -> list[ExperimentView]:
        n_local = len(self._index.roots)
        views: list[ExperimentView] = []
        for place in places:
            if place[1] < n_local:
                views += self._index.load([place])
            elif self._stored is not None:
                views += self._stored.load([place])
        return views
