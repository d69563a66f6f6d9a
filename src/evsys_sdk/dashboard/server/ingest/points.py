"""Store metrics of steps in bulk; optimized for speed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from ..storage import schema
from .wire import Columns

type Value = tuple[str, float | None, str | None]
"""Name, number, and `NaN`, `Infinity` or `-Infinity` if it is not finite."""
type Row = tuple[Any, ...]
type Latest = tuple[int, float | None]
"""Last step and its value."""

_COLUMNS = "run_no, key_id, step, at, value, odd"
_LATEST_COLUMNS = "run_no, key_id, step, last"
_REPLACE = "at = excluded.at, value = excluded.value, odd = excluded.odd"
# Compared in SQL, because streams of one run may arrive in any order: the later step is kept.
_KEEP_LATEST = """
    step = CASE WHEN excluded.step >= metric_latest.step THEN excluded.step ELSE metric_latest.step END,
    last = CASE WHEN excluded.step >= metric_latest.step THEN excluded.last ELSE metric_latest.last END
"""
_POINT_TYPES = ("bigint", "integer", "bigint", "float8", "float8", "text")
_LATEST_TYPES = (*_POINT_TYPES[:3], "float8")


_ROWS = 150
"""Rows per statement in SQLite: half the cost of single rows, within the limit of values of every build."""


class PointBuffer:
    """Collects the points of a batch and writes them in bulk, together with the latest values."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._rows: list[Row] = []
        self._latest: dict[tuple[int, int], Latest] = {}

    def add(self, connection: Connection, run: int, step: int, at: float | None, values: Iterable[Value]) -> None:
        """Add one step of one run."""
        for name, value, odd in values:
            key = self._key(connection, name)
            self._rows.append((run, key, step, at, value, odd))
            self._note_latest(run, key, step, value)

    def add_columns(
        self, connection: Connection, run: int, steps: Sequence[int], ats: Sequence[float | None], columns: Columns
    ) -> None:
        """Add many steps of one run with the same metrics, all finite; of repeated steps, the last counts."""
        last = max(steps)
        at_last = len(steps) - 1 - steps[::-1].index(last)  # the last index, if a step is repeated
        for name, values in columns.items():
            key = self._key(connection, name)
            self._rows += [
                (run, key, step, at, value, None) for step, at, value in zip(steps, ats, values, strict=True)
            ]
            self._note_latest(run, key, last, values[at_last])

    def flush(self, connection: Connection) -> None:
        """Write the collected points."""
        if not self._rows:
            return
        # Cleared before writing: if writing fails, the batch is added again and must not be doubled.
        rows, self._rows = self._rows, []
        latest, self._latest = self._latest, {}
        furthest: dict[int, int] = {}
        for (run, _), (step, *_) in latest.items():
            if furthest.get(run, -1) < step:
                furthest[run] = step
        _write(connection, "metric_point", _COLUMNS, rows, _REPLACE, _POINT_TYPES)
        newest = [(*place, *values) for place, values in latest.items()]
        _write(connection, "metric_latest", _LATEST_COLUMNS, newest, _KEEP_LATEST, _LATEST_TYPES)
        _note_progress(connection, furthest)

    def forget(self) -> None:
        self._keys.clear()
        self._rows.clear()
        self._latest.clear()

    def _note_latest(self, run: int, key: int, step: int, value: float | None) -> None:
        latest = self._latest.get((run, key))
        if latest is None or step >= latest[0]:
            self._latest[run, key] = (step, value)

    def _key(self, connection: Connection, name: str) -> int:
        key = self._keys.get(name)
        if key is None:
            table = schema.metric_key
            key = connection.execute(select(table.c.id).where(table.c.name == name)).scalar()
            if key is None:
                # No race, because there is a single writer thread.
                key = connection.execute(insert(table).values(name=name).returning(table.c.id)).scalar_one()
            self._keys[name] = key = int(key)
        return key


def _write(
    connection: Connection, table: str, columns: str, rows: Sequence[Row], change: str, types: Sequence[str]
) -> None:
    """Insert or replace many rows; SQLite binds single values, PostgreSQL whole columns."""
    places = 3 if table == "metric_point" else 2
    conflict = f"ON CONFLICT ({', '.join(columns.split(', ')[:places])}) DO UPDATE SET"
    if connection.dialect.name == "sqlite":
        insert, marks = f"INSERT INTO {table} ({columns}) VALUES", f"({', '.join('?' * len(types))})"
        # One statement text for all full chunks, which SQLite compiles once; the remaining rows are written singly.
        n_chunked = len(rows) - len(rows) % _ROWS
        many = f"{insert} {', '.join([marks] * _ROWS)} {conflict} {change}" if n_chunked else ""
        for first in range(0, n_chunked, _ROWS):
            connection.exec_driver_sql(many, tuple(itertools.chain.from_iterable(rows[first : first + _ROWS])))
        if n_chunked < len(rows):
            connection.exec_driver_sql(f"{insert} {marks} {conflict} {change}", list(rows[n_chunked:]))
        return
    arrays = ", ".join(f"%s::{kind}[]" for kind in types)
    unique = {row[:places]: row for row in rows}.values()  # one statement changes no row twice
    values = tuple(list(column) for column in zip(*unique, strict=True))
    connection.exec_driver_sql(
        f"INSERT INTO {table} ({columns}) SELECT * FROM unnest({arrays}) {conflict} {change}", values
    )


def _note_progress(connection: Connection, furthest: dict[int, int]) -> None:
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    rows = [(step, run, step) for run, step in furthest.items()]
    connection.exec_driver_sql(
        f"UPDATE run SET step = {mark} WHERE no = {mark} AND (step IS NULL OR step < {mark})", rows
    )
