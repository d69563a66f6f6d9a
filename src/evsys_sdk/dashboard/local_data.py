"""Datasets and benchmarks of a project on this disk, as the read API shows them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from ..data.workspace.inventory import Listing
from ..data.workspace.row_cache import CachedRows
from ..data.workspace.workspace import Workspace
from ..errors import WorkspaceError
from .cursors import read_cursor, write_cursor
from .shapes import DataEntries, DataEntry, DataRows
from .source import DataKind, NotFound


def local_entries(project: Path, kind: DataKind, name: str, limit: int, cursor: str) -> DataEntries:
    """What the workspace and the data folder of the project have."""
    begin = max(int(read_cursor(cursor, int)[0]), 0) if cursor else 0
    found = [one for one in Workspace(project).list(kind) if one.id and (not name or one.name == name)]
    page = found[begin : begin + limit]
    following = write_cursor(begin + limit) if begin + limit < len(found) else None
    return DataEntries(items=[_entry(kind, one) for one in page], next=following)


def local_rows(project: Path, kind: DataKind, id: str, limit: int, cursor: str) -> DataRows:
    """Some rows of what is known by an id; an id never becomes a path before the workspace knows it."""
    begin = max(int(read_cursor(cursor, int)[0]), 0) if cursor else 0
    workspace = Workspace(project)
    entry = next((_entry(kind, one) for one in workspace.list(kind, derived=True) if one.id == id), None)
    if entry is None:
        raise NotFound(kind, id)
    try:
        rows: CachedRows = workspace.pull_dataset(id=id) if kind == "dataset" else workspace.pull_benchmark(id=id)
    except WorkspaceError as error:
        raise NotFound(kind, f"{id}: {error}") from None
    page: list[dict[str, Any]] = [dict(row) for row in islice(rows.rows(), begin, begin + limit)]
    more = begin + len(page) < rows.manifest.rows
    return DataRows(entry=entry, rows=page, next=write_cursor(begin + len(page)) if more else None)


def _entry(kind: DataKind, one: Listing) -> DataEntry:
    return DataEntry(
        id=one.id or "",
        kind=kind,
        name=one.name,
        version=one.version,
        split=one.split,
        rows=one.rows,
        bytes=one.bytes,
        format=one.format or "",
        sha256="",
        created=None,
        metadata={} if one.problem is None else {"problem": one.problem},
    )
