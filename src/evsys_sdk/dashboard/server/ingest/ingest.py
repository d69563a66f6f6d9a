"""Ingest batches of streams: each record is stored exactly once, and an invalid record is quarantined alone.

The record count of a stream is stored in the same transaction as the records. So records that are sent again are
skipped, and acknowledged records survive a crash.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.exc import DataError as DatabaseDataError
from sqlalchemy.exc import IntegrityError

from ....errors import DataError, EvsysError
from ..storage import schema, store
from ..storage.store import RunRef, UnknownRun
from . import wire
from .points import PointBuffer
from .wire import Record

_LONGEST_QUARANTINED_LINE = 20_000

# Module constants, because building a statement takes longer than running it.
_SAME_STREAM = (schema.stream.c.project_id == bindparam("of"), schema.stream.c.id == bindparam("named"))
_CURSOR = select(schema.stream.c.next_seq, schema.stream.c.experiment_id).where(*_SAME_STREAM)
_MOVE_CURSOR = (
    update(schema.stream)
    .where(*_SAME_STREAM)
    .values({name: bindparam(name) for name in ("next_seq", "experiment_id", "updated")})
)
_OPEN = (
    select(*(column for column in schema.request.c if column.name not in ("project_id", "state", "answer")))
    .where(schema.request.c.project_id == bindparam("of"), schema.request.c.experiment_id == bindparam("about"))
    .where(schema.request.c.state == "open")
    .order_by(schema.request.c.time)
)

type _Arrived = tuple[int, bytes, Record]
"""Number in the stream, raw line, and decoded record."""


class GapError(EvsysError):
    """A batch starts after the next expected record."""

    def __init__(self, next_seq: int) -> None:
        super().__init__(f"record {next_seq} of this stream is expected next.")
        self.next_seq = next_seq


@dataclass(slots=True)
class IngestResult:
    """The result of a batch."""

    next: int
    rejected: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class Ingest:
    """Stores records; caches the row numbers of runs and metrics."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], RunRef] = {}
        self._points = PointBuffer()

    def forget(self) -> None:
        """Clear the caches after a rollback."""
        self._runs.clear()
        self._points.forget()

    def take(self, connection: Connection, project: str, stream: str, seq: int, lines: Sequence[bytes]) -> IngestResult:
        """Store the new records of a batch."""
        cursor = self._cursor(connection, project, stream)
        if seq > cursor.next_seq:
            raise GapError(cursor.next_seq)
        fresh = list(lines[cursor.next_seq - seq :])  # skips stored records
        work = _Work(connection, project, cursor.experiment_id)
        if fresh:
            self._take_lines(work, stream, cursor.next_seq, fresh)
            store.touch(connection, project, sorted(work.touched))
            values = {
                "next_seq": cursor.next_seq + len(fresh),
                "experiment_id": work.experiment,
                "updated": time.time(),
            }
            connection.execute(_MOVE_CURSOR, {"of": project, "named": stream, **values})
        return IngestResult(
            cursor.next_seq + len(fresh), work.rejected, open_requests(connection, project, work.experiment)
        )

    def apply(self, connection: Connection, project: str, record: Record) -> None:
        """Store a single record that is not part of a stream."""
        work = _Work(connection, project, None)
        about = record.id if isinstance(record, wire.RunSet) and not record.experiment else getattr(record, "run", None)
        if about is not None and store.find_run(connection, project, about) is None:
            raise UnknownRun(about)
        self._store(work, record)
        self._points.flush(connection)
        store.touch(connection, project, sorted(work.touched))

    def _take_lines(self, work: _Work, stream: str, first: int, lines: Sequence[bytes]) -> None:
        decoded = self._decode(work, stream, first, lines)
        n_rejected = len(work.rejected)
        try:
            with work.connection.begin_nested():
                self._store_all(work, stream, decoded)
        except (DatabaseDataError, IntegrityError):  # a record cannot be stored: store them one by one
            self.forget()  # the rollback removed runs and metrics with cached numbers
            del work.rejected[n_rejected:]  # rejected again below
            for seq, line, record in decoded:
                try:
                    with work.connection.begin_nested():
                        self._store_all(work, stream, [(seq, line, record)])
                except (DatabaseDataError, IntegrityError) as error:
                    self.forget()
                    self._quarantine(work, stream, seq, line, f"the database cannot store it: {error.orig}")

    def _decode(self, work: _Work, stream: str, first: int, lines: Sequence[bytes]) -> list[_Arrived]:
        try:
            return list(zip(range(first, first + len(lines)), lines, wire.decode_all(lines), strict=True))
        except DataError:  # a line is invalid
            decoded: list[_Arrived] = []
        for seq, line in enumerate(lines, first):
            try:
                decoded.append((seq, line, wire.decode(line)))
            except DataError as error:
                self._quarantine(work, stream, seq, line, str(error))
        return decoded

    def _store_all(self, work: _Work, stream: str, records: Sequence[_Arrived]) -> None:
        # Only consecutive records are grouped, because a rewind between them must keep its position.
        for (run, _), group in itertools.groupby(records, _group_key):
            arrived = list(group)
            if run and self._store_steps(work, run, [cast("wire.StepRecord", record) for _, _, record in arrived]):
                continue
            for seq, line, record in arrived:
                try:
                    self._store(work, record)
                except DataError as error:
                    self._quarantine(work, stream, seq, line, str(error))
        self._points.flush(work.connection)

    def _store_steps(self, work: _Work, run_id: str, steps: Sequence[wire.StepRecord]) -> bool:
        """Store many steps of one run in bulk; return False if they must be stored one by one."""
        columns = wire.columns_of([step.line for step in steps])
        try:
            run = self._run(work, run_id)
        except DataError:
            return False
        if columns is not None:
            self._points.add_columns(work.connection, run.no, columns[0], [step.at for step in steps], columns[1])
        return columns is not None

    def _store(self, work: _Work, record: Record) -> None:
        connection, project = work.connection, work.project
        match record:
            case wire.StepRecord():
                run = self._run(work, record.run)
                step, metrics = wire.metrics_of(record.line)
                self._points.add(connection, run.no, step, record.at, metrics)
            case wire.ExperimentSet():
                store.put_experiment(connection, project, record.id, record.set)
                work.touch(record.id)
            case wire.RunSet():
                self._put_run(work, record)
            case wire.ScoreRecord():
                run = self._run(work, record.run)
                scores = store.put_score(connection, run, record.id, record.line)
                step = int(record.line.get("step", 0))
                self._points.add(
                    connection, run.no, step, None, [(name, value, None) for name, value in scores.items()]
                )
            case wire.RolloutRows():
                run = self._run(work, record.run)
                store.put_rollouts(connection, run, record.split, record.name, record.step, record.rows)
            case wire.Rewind():
                run = self._run(work, record.run)
                self._points.flush(connection)  # earlier points must be written before they can be deleted
                store.rewind(connection, run, record.next_step)
            case wire.JournalEvent():
                store.put_event(connection, project, record.experiment, record.event)
                work.touch(record.experiment)
            case wire.SpendRecord():
                store.put_spend(connection, project, record.experiment, record.number, record.line)
                work.touch(record.experiment)
            case wire.AnchorRecord():
                store.put_anchor(connection, project, record.experiment, record.events, record.head)
                work.touch(record.experiment)
            case wire.AnswerRecord():
                work.touch(store.answer_request(connection, project, record.request, record.state, record.answer))
            case wire.LoopSet():
                store.put_page(connection, project, record.system, record.at, record.page)
            case wire.BenchmarkRecord():
                store.put_benchmark(connection, project, record.id, record.name, record.metadata)
            case wire.Stream():
                pass  # contains nothing that the URL does not

    def _put_run(self, work: _Work, record: wire.RunSet) -> None:
        run = store.put_run(work.connection, work.project, record.id, record.experiment, record.set)
        self._runs[work.project, record.id] = run
        work.touch(run.experiment_id)

    def _run(self, work: _Work, id: str) -> RunRef:
        """Find a run by its id, or create it, because its own record may arrive later in another stream."""
        run = self._runs.get((work.project, id))
        if run is None:
            wire.check_ids(id)
            run = store.find_run(work.connection, work.project, id)
        if run is None:
            run = store.put_run(work.connection, work.project, id, None, {})
        self._runs[work.project, id] = run
        work.touch(run.experiment_id)
        return run

    @staticmethod
    def _quarantine(work: _Work, stream: str, seq: int, line: bytes, reason: str) -> None:
        work.rejected.append({"seq": seq, "reason": reason})
        # PostgreSQL cannot store NUL, which may be the reason for the rejection.
        text = line[:_LONGEST_QUARANTINED_LINE].decode(errors="replace").replace("\x00", "\ufffd")
        values = {"project_id": work.project, "stream_id": stream, "seq": seq, "reason": reason.replace("\x00", "")}
        values |= {"line": text, "at": time.time()}
        store.upsert(work.connection, schema.quarantine, [values], ("project_id", "stream_id", "seq"))

    def _cursor(self, connection: Connection, project: str, stream: str) -> Any:
        same = {"of": project, "named": stream}
        row = connection.execute(_CURSOR, same).first()
        if row is None:
            values = {"project_id": project, "id": stream, "next_seq": 0, "updated": time.time()}
            connection.execute(insert(schema.stream).values(**values))
            return connection.execute(_CURSOR, same).one()
        return row


def _group_key(arrived: _Arrived) -> tuple[str, Sequence[str]]:
    """The grouping key of consecutive steps: run and metric names; the same empty key for other records."""
    record = arrived[2]
    return (record.run, tuple(record.line)) if isinstance(record, wire.StepRecord) else ("", ())


@dataclass(slots=True)
class _Work:
    """The state of a batch while it is stored."""

    connection: Connection
    project: str
    experiment: str | None
    """The last experiment of the stream; its open requests are returned to the client."""
    touched: set[str] = field(default_factory=set[str])
    rejected: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def touch(self, experiment: str | None) -> None:
        if experiment:
            self.touched.add(experiment)
            self.experiment = experiment


def open_requests(connection: Connection, project: str, experiment: str | None) -> list[dict[str, Any]]:
    """The open requests for an experiment."""
    if experiment is None:
        return []
    return [dict(row) for row in connection.execute(_OPEN, {"of": project, "about": experiment}).mappings()]
