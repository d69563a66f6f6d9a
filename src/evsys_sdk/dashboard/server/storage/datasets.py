"""Datasets and benchmarks in the database: immutable versions, stored as compressed pieces of JSONL.

POST /sdk/datasets/                     name, version, hash of the rows  -> id and number of the next piece
PUT  /sdk/datasets/{id}/pieces/{n}      a piece of the rows, in order
POST /sdk/datasets/{id}/finish          check the hash; afterwards the entry is readable
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update
from sqlalchemy.engine import RowMapping

from ....data.jsonl import parse_json
from ....data.workspace.reference import check_name, content_id
from ....errors import DataError, show
from ...shapes.record import DataEntries, DataEntry, DataRows
from ...views.source import DataKind, NotFound, read_cursor, write_cursor
from . import schema

_TABLE, _CHUNK = schema.data_entry, schema.data_chunk


def begin_upload(connection: Connection, project: str, kind: DataKind, about: dict[str, Any]) -> dict[str, Any]:
    """Announce rows; the same content under the same name is stored once. Return id, version and next piece."""
    name, split, sha256 = check_name(about["name"]), check_name(about["split"], what="split"), about["sha256"]
    version = about["version"] or _next_version(connection, project, kind, name, split, sha256)
    id = content_id(kind, name=name, version=version, split=split, sha256=sha256)
    row = find_entry(connection, project, kind, id, complete=False)
    same = (
        _TABLE.c.project_id == project,
        _TABLE.c.kind == kind,
        _TABLE.c.name == name,
        _TABLE.c.version == version,
    )
    # Incomplete uploads reserve no version.
    others = select(_TABLE.c.id).where(*same, _TABLE.c.split == split, _TABLE.c.id != id, _TABLE.c.complete)
    if connection.execute(others).first() is not None:
        raise DataError(f"{kind} {name}@v{version}:{split} exists with other rows. Leave the version out, or raise it.")
    if row is None:
        values = {"project_id": project, "id": id, "kind": kind, "name": name, "version": version, "split": split}
        values |= {"rows": 0, "bytes": 0, "format": about["format"], "sha256": sha256, "created": time.time()}
        values |= {"metadata": json.dumps(about["metadata"], ensure_ascii=False), "complete": False}
        connection.execute(insert(_TABLE).values(**values))
        return {"id": id, "version": version, "next_piece": 0, "complete": False}
    pieces = select(func.count()).where(_CHUNK.c.project_id == project, _CHUNK.c.entry_id == id)
    following = int(connection.execute(pieces).scalar_one())
    return {"id": id, "version": version, "next_piece": following, "complete": bool(row["complete"])}


def add_piece(connection: Connection, project: str, kind: DataKind, id: str, piece: int, body: bytes) -> int:
    """Store a piece of rows; skip an existing piece. Return the number of the next piece."""
    row = find_entry(connection, project, kind, id, complete=False)
    if row is None:
        raise NotFound(kind, id)
    same = (_CHUNK.c.project_id == project, _CHUNK.c.entry_id == id)
    count, rows = connection.execute(select(func.count(), func.sum(_CHUNK.c.rows)).where(*same)).one()
    if row["complete"] or piece < count:
        return max(piece + 1, int(count))
    if piece > count:
        raise DataError(f"piece {piece} of {kind} {show(id)} came before piece {count}. Send them in order.")
    if not body:
        raise DataError(f"piece {piece} of {kind} {show(id)} is empty. Send whole lines.")
    lines = _lines_of(body)
    for line in lines:
        if not isinstance(parse_json(line, f"piece {piece}"), dict):
            raise DataError(f"piece {piece} of {kind} {show(id)} has a row that is not an object: {show(line[:60])}.")
    values = {"project_id": project, "entry_id": id, "number": piece, "first_row": int(rows or 0), "rows": len(lines)}
    connection.execute(insert(_CHUNK).values(**values, body=zlib.compress(body, 6)))
    return piece + 1


def finish_upload(connection: Connection, project: str, kind: DataKind, id: str) -> DataEntry | None:
    """Check the rows against their announced hash, and make them readable.

    If the hash differs, delete the pieces, so that they can be uploaded again, and return None.
    """
    row = find_entry(connection, project, kind, id, complete=False)
    if row is None:
        raise NotFound(kind, id)
    if not row["complete"]:
        digest, rows, size, ended = hashlib.sha256(), 0, 0, [True]
        same_entry = (_CHUNK.c.project_id == project, _CHUNK.c.entry_id == id)
        pieces = select(_CHUNK.c.rows, _CHUNK.c.body).where(*same_entry).order_by(_CHUNK.c.number)
        for count, compressed in connection.execute(pieces):
            body = zlib.decompress(compressed)
            digest.update(body)
            rows, size = rows + count, size + len(body)
            ended.append(body.endswith(b"\n"))
        # Only the last piece may lack a final line feed; otherwise lines of two pieces would be joined.
        if digest.hexdigest() != row["sha256"] or not all(ended[:-1]):
            connection.execute(delete(_CHUNK).where(*same_entry))
            return None  # an exception would roll the deletion back
        same = (_TABLE.c.project_id == project, _TABLE.c.id == id)
        connection.execute(update(_TABLE).where(*same).values(rows=rows, bytes=size, complete=True))
        row = find_entry(connection, project, kind, id)
    assert row is not None
    return _entry(row)


def data_entries(
    connection: Connection, project: str, kind: DataKind, name: str, limit: int, cursor: str
) -> DataEntries:
    """A page of entries by name, newest version first."""
    query = select(_TABLE).where(_TABLE.c.project_id == project, _TABLE.c.kind == kind, _TABLE.c.complete)
    if name:
        query = query.where(_TABLE.c.name == name)
    if cursor:
        last, version, id = read_cursor(cursor, str, int, str)
        later = or_(_TABLE.c.version < version, and_(_TABLE.c.version == version, _TABLE.c.id > id))
        query = query.where(or_(_TABLE.c.name > last, and_(_TABLE.c.name == last, later)))
    query = query.order_by(_TABLE.c.name, _TABLE.c.version.desc(), _TABLE.c.id).limit(limit + 1)
    rows = connection.execute(query).mappings().all()
    page = [_entry(row) for row in rows[:limit]]
    more = len(rows) > limit and page
    return DataEntries(items=page, next=write_cursor(page[-1].name, page[-1].version, page[-1].id) if more else None)


def data_rows(connection: Connection, project: str, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows:
    """A page of rows, in order."""
    row = find_entry(connection, project, kind, id)
    if row is None:
        raise NotFound(kind, id)
    begin = max(int(read_cursor(cursor, int)[0]), 0) if cursor else 0
    same = (_CHUNK.c.project_id == project, _CHUNK.c.entry_id == id)
    inside = (_CHUNK.c.first_row < begin + limit, _CHUNK.c.first_row + _CHUNK.c.rows > begin)
    chunks = select(_CHUNK.c.first_row, _CHUNK.c.body).where(*same, *inside).order_by(_CHUNK.c.number)
    page: list[dict[str, Any]] = []
    for first, body in connection.execute(chunks):
        lines = _lines_of(zlib.decompress(body))
        page += [json.loads(line) for line in lines[max(begin - first, 0) : begin + limit - first]]
    end = begin + len(page)
    return DataRows(entry=_entry(row), rows=page, next=write_cursor(end) if end < (row["rows"] or 0) else None)


def read_lines(connection: Connection, project: str, kind: DataKind, id: str, piece: int) -> bytes:
    """One piece of the rows as JSONL; empty after the last."""
    if find_entry(connection, project, kind, id) is None:
        raise NotFound(kind, id)
    same = (_CHUNK.c.project_id == project, _CHUNK.c.entry_id == id, _CHUNK.c.number == piece)
    body = connection.execute(select(_CHUNK.c.body).where(*same)).scalar()
    return b"" if body is None else zlib.decompress(body)


def find_entry(
    connection: Connection, project: str, kind: DataKind, id: str, *, complete: bool = True
) -> RowMapping | None:
    """The row of an entry, or None; by default only of complete entries."""
    query = select(_TABLE).where(_TABLE.c.project_id == project, _TABLE.c.kind == kind, _TABLE.c.id == id)
    return connection.execute(query.where(_TABLE.c.complete) if complete else query).mappings().first()


def entry_of(connection: Connection, project: str, kind: DataKind, id: str) -> DataEntry:
    """The entry with this id in the shape of the API; raise if there is none."""
    row = find_entry(connection, project, kind, id)
    if row is None:
        raise NotFound(kind, id)
    return _entry(row)


def _lines_of(body: bytes) -> list[bytes]:
    """The rows of a piece; blank lines are no rows, as in files."""
    return [line for line in body.split(b"\n") if line.strip()]


def _next_version(connection: Connection, project: str, kind: DataKind, name: str, split: str, sha256: str) -> int:
    """The version of these rows if they are stored, else the next free version."""
    same = (_TABLE.c.project_id == project, _TABLE.c.kind == kind, _TABLE.c.name == name, _TABLE.c.split == split)
    highest = select(func.max(_TABLE.c.version)).where(*same)
    version = connection.execute(highest.where(_TABLE.c.sha256 == sha256, _TABLE.c.complete)).scalar()
    if version is not None:
        return int(version)
    last = int(connection.execute(highest.where(_TABLE.c.complete)).scalar() or 0)
    begun = int(connection.execute(highest.where(_TABLE.c.sha256 == sha256)).scalar() or 0)
    # An incomplete upload keeps its version, unless a complete one has this or a later version.
    return begun if begun > last else last + 1


def _entry(row: RowMapping) -> DataEntry:
    values = {name: row[name] for name in DataEntry.model_fields if name != "metadata"}
    return DataEntry(**values, metadata=json.loads(row["metadata"]))
