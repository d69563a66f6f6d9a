"""Metrics of steps, many at a time: the one place where speed decides how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from . import schema

type Value = tuple[str, float | None, str | None]
"""Name, number, and what it was where it is no finite number."""

_COLUMNS = "run_no, key_id, step, at, value, odd"
_LATEST_COLUMNS = "run_no, key_id, step, last, low, high"
_REPLACE = "at = excluded.at, value = excluded.value, odd = excluded.odd"
_KEEP_LATEST = """
    step = CASE WHEN excluded.step >= metric_latest.step THEN excluded.step ELSE metric_latest.step END,
    last = CASE WHEN excluded.step >= metric_latest.step THEN excluded.last ELSE metric_latest.last END,
    low = CASE WHEN metric_latest.low IS NULL OR excluded.low < metric_latest.low
          THEN excluded.low ELSE metric_latest.low END,
    high = CASE WHEN metric_latest.high IS NULL OR excluded.high > metric_latest.high
           THEN excluded.high ELSE metric_latest.high END
"""
_POINT_TYPES = ("bigint", "integer", "bigint", "float8", "float8", "text")
_LATEST_TYPES = ("bigint", "integer", "bigint", "float8", "float8", "float8")


class PointBuffer:
    """Gathers points of a batch and writes them with one statement each for points and latest values."""

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}
        self._points: dict[tuple[int, int, int], tuple[float | None, float | None, str | None]] = {}

    def add(self, connection: Connection, run: int, step: int, at: float | None, values: Iterable[Value]) -> None:
        """One step of one run."""
        keys, points = self._keys, self._points
        for name, value, odd in values:
            key = keys.get(name)
            if key is None:
                key = self._key(connection, name)
            points[run, key, step] = (at, value, odd)

    def flush(self, connection: Connection) -> None:
        """Write what was gathered."""
        if not self._points:
            return
        points, self._points = self._points, {}
        rows = [(*place, *point) for place, point in points.items()]
        latest: dict[tuple[int, int], list[Any]] = {}
        furthest: dict[int, int] = {}
        for run, key, step, _, value, _ in rows:
            if furthest.get(run, -1) < step:
                furthest[run] = step
            known = latest.get((run, key))
            if known is None:
                latest[run, key] = [step, value, value, value]
                continue
            if step >= known[0]:
                known[0], known[1] = step, value
            if value is not None:
                known[2] = value if known[2] is None or value < known[2] else known[2]
                known[3] = value if known[3] is None or value > known[3] else known[3]
        _write(connection, "metric_point", _COLUMNS, rows, _REPLACE, _POINT_TYPES)
        newest = [(*place, *values) for place, values in latest.items()]
        _write(connection, "metric_latest", _LATEST_COLUMNS, newest, _KEEP_LATEST, _LATEST_TYPES)
        _note_progress(connection, furthest)

    def forget(self) -> None:
        self._keys.clear()
        self._points.clear()

    def _key(self, connection: Connection, name: str) -> int:
        table = schema.metric_key
        known = connection.execute(select(table.c.id).where(table.c.name == name)).scalar()
        if known is None:
            known = connection.execute(insert(table).values(name=name).returning(table.c.id)).scalar_one()
        self._keys[name] = int(known)
        return self._keys[name]


def _write(
    connection: Connection, table: str, columns: str, rows: Sequence[tuple[Any, ...]], change: str, types: Sequence[str]
) -> None:
    """Insert or replace many rows; SQLite binds them one by one, PostgreSQL takes whole columns."""
    conflict = f"ON CONFLICT ({', '.join(columns.split(', ')[: 3 if table == 'metric_point' else 2])}) DO UPDATE SET"
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(types))
        connection.exec_driver_sql(f"INSERT INTO {table} ({columns}) VALUES ({marks}) {conflict} {change}", list(rows))
        return
    arrays = ", ".join(f"%s::{kind}[]" for kind in types)
    values = tuple(list(column) for column in zip(*rows, strict=True))
    connection.exec_driver_sql(
        f"INSERT INTO {table} ({columns}) SELECT * FROM unnest({arrays}) {conflict} {change}", values
    )


def _note_progress(connection: Connection, furthest: dict[int, int]) -> None:
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    rows = [(step, run, step) for run, step in furthest.items()]
    connection.exec_driver_sql(
        f"UPDATE run SET step = {mark} WHERE no = {mark} AND (step IS NULL OR step < {mark})", rows
    )
