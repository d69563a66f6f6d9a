"""Load the rows of a run, and record their source, id and content hash.

Transformed rows of a workspace dataset are cached in the workspace, keyed by the dataset's content and by the params
and code of the transforms. Rows of plain files and of the config are transformed by each run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...config import DataConfig, DataStoreSpec
from ...data import Workspace, apply_transforms, build_transforms, describe_source, prepare_rows
from ...data.bad_rows import BadRows
from ...errors import EvsysError
from ...files import write_json
from ...log import get_logger
from ...protocols import DataStore, Row
from ...record.layout import RunFiles
from ...registry import get_data_store


class RowLoader:
    """Loads and transforms rows; with a run folder, it also records source, id and content hash of each source."""

    def __init__(self, store: DataStore, run_dir: Path | None) -> None:
        self._store, self._path = store, run_dir and RunFiles(run_dir).datasets
        self._notes: dict[str, dict[str, Any]] = {}
        self._loaded: dict[str, tuple[list[Row], str]] = {}
        """Rows and their hash by data config."""

    def __call__(self, data: DataConfig) -> list[Row]:
        """The rows of a source; each source is loaded once."""
        return list(self._load(data)[0])

    def hash_rows(self, data: DataConfig) -> str:
        """Content hash of the rows of a source."""
        return self._load(data)[1]

    def _load(self, data: DataConfig) -> tuple[list[Row], str]:
        key = data.model_dump_json()
        if key in self._loaded:
            return self._loaded[key]
        rows, came_from = load_transformed(data, self._store)
        source, sha256 = describe_source(data), content_hash(rows)
        self._notes[f"{source} {sha256}"] = {"source": source, "rows": len(rows), "sha256": sha256, **came_from}
        self._loaded[key] = rows, sha256
        if self._path is not None:
            write_json(self._path, list(self._notes.values()))
        return self._loaded[key]


def row_reader(spec: DataStoreSpec) -> RowLoader:
    """A loader that records nothing."""
    return RowLoader(get_data_store(spec.kind)(**spec.arguments), None)


def load_transformed(data: DataConfig, store: DataStore) -> tuple[list[Row], dict[str, Any]]:
    """The transformed rows of a source, and for a workspace dataset its id, version and hash."""
    bad = BadRows(skip=data.on_bad_row == "skip")
    if not (data.dataset_id or data.dataset_name):
        return list(prepare_rows(data, store=store, bad=bad)), _left_out(bad)
    workspace = Workspace()
    pulled = workspace.pull_dataset(id=data.dataset_id, name=None if data.dataset_id else data.dataset_name)
    came_from = {"id": pulled.id, "version": pulled.version, "source_sha256": pulled.manifest.sha256}
    if bad.skip or data.columns:  # the cache key covers neither
        rows = list(prepare_rows(data, store=store, workspace=workspace, bad=bad))
        return rows, {**came_from, **_left_out(bad)}
    if not data.transforms:
        return list(pulled.rows()), came_from
    try:
        cached = workspace.materialise(pulled, data.transforms)
        return list(cached.rows()), {**came_from, "derived_id": cached.id}
    except (EvsysError, OSError) as problem:
        # Raises the same error again if the transforms are wrong.
        rows = list(apply_transforms(pulled.rows(), build_transforms(data.transforms)))
        source = describe_source(data)
        get_logger(__name__).warning("the transformed rows of %s could not be cached: %s", source, problem)
        return rows, came_from


def _left_out(bad: BadRows) -> dict[str, Any]:
    """The number of rows that were left out, with the reasons, for the record."""
    return {"rows_left_out": bad.count, "left_out": bad.report()} if bad.count else {}


def content_hash(rows: Sequence[Row]) -> str:
    """A hash of the rows' content, the same for the same rows in the same order."""
    digest = hashlib.sha256()
    for row in rows:
        # JSON may hold half of a surrogate pair, which UTF-8 cannot encode.
        digest.update(
            json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
        )
    return digest.hexdigest()
