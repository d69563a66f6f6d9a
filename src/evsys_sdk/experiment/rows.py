"""The rows a run uses, and the note in its record that says exactly which ones they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import DataConfig
from ..data import Workspace, apply_transforms, build_transforms, describe_source, load_rows
from ..data.row_cache import CachedRows
from ..files import write_json
from ..protocols import DataStore, Row
from ..record.layout import RunFiles


class RowLoader:
    """Loads and transforms rows, and records source, id and content hash of each load in the run's folder."""

    def __init__(self, store: DataStore, run_dir: Path) -> None:
        self._store, self._path = store, RunFiles(run_dir).datasets
        self._workspace = _RememberingWorkspace()
        self._notes: dict[str, dict[str, Any]] = {}

    def __call__(self, data: DataConfig) -> list[Row]:
        self._workspace.pulled = None
        raw = load_rows(data, store=self._store, workspace=self._workspace)
        rows = list(apply_transforms(raw, build_transforms(data.transforms)))
        note: dict[str, Any] = {"source": describe_source(data), "rows": len(rows), "sha256": content_hash(rows)}
        if (pulled := self._workspace.pulled) is not None:
            note |= {"id": pulled.id, "version": pulled.version, "source_sha256": pulled.manifest.sha256}
        self._notes[f"{note['source']} {note['sha256']}"] = note
        write_json(self._path, list(self._notes.values()))
        return rows


class _RememberingWorkspace:
    """Pulls datasets and remembers which one a name turned out to be."""

    def __init__(self) -> None:
        self.pulled: CachedRows | None = None

    def pull_dataset(self, *, id: str | None = None, name: str | None = None) -> CachedRows:
        self.pulled = Workspace().pull_dataset(id=id, name=name)
        return self.pulled


def content_hash(rows: Sequence[Row]) -> str:
    """A hash of the rows' content, the same for the same rows in the same order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
        )
    return digest.hexdigest()
