"""Datasets and benchmarks of a dashboard: a source for the workspace, and the upload of rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from ...data.workspace.dataset_source import Available, SourceEntry, UnknownDataError, choose, unknown_id
from ...data.workspace.reference import FOLDERS, Kind, Reference
from ...data.workspace.row_cache import CachedRows
from ...errors import DashboardClientError
from ...log import get_logger
from ...protocols import Row
from .connection import Connection, Unreachable

_PAGE = 500
_PIECE_BYTES = 4 << 20


class DashboardSource:
    """The datasets and benchmarks of a dashboard, used for ids and names that the project itself does not have."""

    name = "dashboard"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def from_environment(cls) -> DashboardSource | None:
        """The dashboard of the environment; None if none is set or the client is offline."""
        # Checked first, because a project without a dashboard has no key, which is no error.
        if not os.environ.get("EVSYS_API_KEY", "").strip():
            return None
        connection = Connection.from_environment()
        return None if connection.offline else cls(connection)

    def list(self, kind: Kind) -> list[Available]:
        """All versions of all entries of a kind; empty if the server cannot be reached, so that pulled data is used."""
        try:
            url = self._connection.url
            return [Available(kind, row["name"], row["version"], row["split"], url) for row in self._entries(kind)]
        except Unreachable as error:
            get_logger(__name__).warning("%s Only what was pulled before can be used.", error)
            return []

    def describe(self, kind: Kind, *, id: str | None = None, name: str | None = None) -> SourceEntry:
        """The entry with this id or reference."""
        if id is not None:
            try:
                row = self._connection.request("GET", f"/sdk/{FOLDERS[kind]}/{id}")
            except DashboardClientError as error:
                if error.status in (404, 422):
                    raise unknown_id(kind, id, []) from None
                raise
            return _source_entry(self._connection, kind, row)
        reference = Reference.parse(name or "")
        entries = [_source_entry(self._connection, kind, row) for row in self._entries(kind, reference.name)]
        return choose(kind, reference, entries)

    def rows(self, entry: SourceEntry) -> Iterator[bytes | Row]:
        """Yield the rows as JSONL lines."""
        if entry.rows is None:
            raise UnknownDataError(
                f"{entry.kind} '{entry.id}': {entry.location} has its name but not its rows. "
                f"Upload them with: evsys {entry.kind} upload"
            )
        base, received, piece = f"/sdk/{FOLDERS[entry.kind]}/{entry.id}/pieces", 0, 0
        while received < (entry.bytes or 0):  # by bytes, because blank lines are part of the hashed file
            lines = self._connection.request_bytes("GET", f"{base}/{piece}")
            yield from BytesIO(lines)
            received, piece = received + len(lines), piece + 1

    def _entries(self, kind: Kind, name: str = "") -> Iterator[dict[str, Any]]:
        cursor: str | None = ""
        while cursor is not None:
            query = {"name": name or None, "limit": _PAGE, "cursor": cursor or None}
            page = self._connection.request("GET", f"/{FOLDERS[kind]}", query=query)
            yield from page["items"]
            cursor = page["next"]


def upload_rows(connection: Connection, kind: Kind, rows: CachedRows) -> dict[str, Any]:
    """Upload cached rows that the dashboard does not have; return its entry for them."""
    manifest, base = rows.manifest, f"/sdk/{FOLDERS[kind]}"
    about: dict[str, Any] = {"name": manifest.name, "split": manifest.split, "sha256": manifest.sha256}
    about |= {"format": ", ".join(manifest.formats), "metadata": manifest.metadata}
    upload = connection.request("POST", f"{base}/", about)
    if not upload["complete"]:
        for number, piece in enumerate(_pieces(rows)):
            if number >= upload["next_piece"]:  # an interrupted upload resumes here
                path = f"{base}/{upload['id']}/pieces/{number}"
                connection.request("PUT", path, piece, content_type="application/x-ndjson")
    entry = connection.request("POST", f"{base}/{upload['id']}/finish", b"")
    return {"uploaded": not upload["complete"], **entry}


def _pieces(rows: CachedRows) -> Iterator[bytes]:
    """Yield the file of the rows in pieces of whole lines."""
    with rows.path.open("rb") as file:
        while lines := file.readlines(_PIECE_BYTES):
            yield b"".join(lines)


def _source_entry(connection: Connection, kind: Kind, row: dict[str, Any]) -> SourceEntry:
    return SourceEntry(
        kind,
        row["name"],
        row["version"],
        row["split"],
        connection.url,
        row["id"],
        row["sha256"] or None,
        row["rows"],
        row["bytes"],
        row["format"] or None,
        row["metadata"],
    )
