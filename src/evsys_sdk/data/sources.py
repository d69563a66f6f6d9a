"""Sources of rows: a `DataConfig` -> a stream of dicts, raw or after transforms.

`rows.parse_rows` converts them to typed rows.

    rows = prepare_rows(config.data, store=store, workspace=workspace)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DataError, MissingExtraError
from ..paths import in_project
from ..protocols import DataStore, Row
from .bad_rows import BadRows
from .fields import no_such_field
from .jsonl import read_jsonl
from .pipeline import apply_transforms, build_transforms
from .row_files import OnError, check_rows, kind_of, list_in, read_row_file

if TYPE_CHECKING:
    from ..config import DataConfig


class _Pulled(Protocol):
    @property
    def path(self) -> str | Path: ...


class DatasetWorkspace(Protocol):
    """The interface of a workspace for loading rows."""

    def pull_dataset(self, *, id: str | None = None, name: str | None = None) -> _Pulled:
        """A cached dataset, by id or by name."""
        ...


def load_rows(
    data: DataConfig, *, store: DataStore, workspace: DatasetWorkspace | None = None, bad: BadRows | None = None
) -> Iterator[Row]:
    """The raw rows of a source, lazily; an empty source is an error.

    An unreadable row is recorded in `bad`; without `bad`, reading stops with the error.
    """
    empty = True
    rows = _rows(data, store, workspace, None if bad is None else bad.note_unread)
    for row in _rename(data, (row for _, row in rows) if bad is None else bad.watch(rows)):
        empty = False
        yield row
    if empty and (bad is None or not bad.count):
        raise DataError(f"{describe_source(data)} holds no rows. Check that it is the file you meant.")


def prepare_rows(
    data: DataConfig, *, store: DataStore, workspace: DatasetWorkspace | None = None, bad: BadRows | None = None
) -> Iterator[Row]:
    """The rows of a source after its transforms; bad rows are reported together, or counted in `bad`."""
    bad = bad or BadRows(skip=data.on_bad_row == "skip")
    raw = load_rows(data, store=store, workspace=workspace, bad=bad)
    return apply_transforms(raw, build_transforms(data.transforms), bad=bad)


def describe_source(data: DataConfig) -> str:
    """A description of the source for messages."""
    if data.dataset_id or data.dataset_name:
        return f"dataset '{data.dataset_id or data.dataset_name}'"
    if data.source_kind == "hf_dataset":
        return f"hf_dataset '{data.hf_dataset}' (split {data.hf_split})"
    return data.path or "data.rows"


def _rows(
    data: DataConfig, store: DataStore, workspace: DatasetWorkspace | None, on_error: OnError | None
) -> Iterable[tuple[int, Row]]:
    if data.dataset_id or data.dataset_name:
        return enumerate(_from_workspace(data, workspace), 1)
    match data.source_kind:
        case "in_memory":
            # Copied, because every arm of an experiment reads the config's rows again.
            return check_rows(copy.deepcopy(_need(data.rows, data, "rows")), "data.rows")
        case "hf_dataset":
            name = _need(data.hf_dataset, data, "hf_dataset")
            if not (local := in_project(name)).exists():
                return enumerate(_from_hugging_face(name, data.hf_split), 1)
            if not data.hf_split.isidentifier():
                raise DataError(
                    f"hf_split '{data.hf_split}': local files have whole splits only. Use the transform `sample`."
                )
            return read_row_file(local, split=data.hf_split, on_error=on_error)
        case kind:
            path = _need(data.path, data, "path")
            if (locate := getattr(store, "locate", None)) is not None:
                return read_row_file(locate(path), kind, split=data.hf_split, on_error=on_error)
            kind = kind_of(path) or kind if kind == "jsonl" else kind
            if kind == "json":
                return check_rows(list_in(store.read_json(path), path), path)
            if kind == "jsonl":
                return enumerate(store.read_jsonl(path), 1)
            raise DataError(f"{path}: data store '{store.name}' reads JSON and JSONL only. Convert the file.")


def _rename(data: DataConfig, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows with the names of `data.columns`; the first row shows missing columns."""
    if not data.columns:
        yield from rows
        return
    for number, row in enumerate(rows):
        if not number and (absent := [name for name in data.columns if name not in row]):
            raise DataError(f"{describe_source(data)}: data.columns: {no_such_field(absent[0], row)}")
        yield {data.columns.get(name, name): value for name, value in row.items()}


def _need[T](value: T | None, data: DataConfig, field: str) -> T:
    if value is None:
        raise DataError(f"data.{field} is not set, but source_kind '{data.source_kind}' needs it. Set it.")
    return value


def _from_workspace(data: DataConfig, workspace: DatasetWorkspace | None) -> Iterator[Row]:
    if workspace is None:
        raise DataError(f"{describe_source(data)} is in the workspace, but none is open here. Set data.path instead.")
    pulled = (
        workspace.pull_dataset(id=data.dataset_id)
        if data.dataset_id
        else workspace.pull_dataset(name=data.dataset_name)
    )
    return read_jsonl(pulled.path)


def _from_hugging_face(name: str, split: str) -> Iterator[Row]:
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise MissingExtraError("data source 'hf_dataset'", "hf") from error
    try:
        rows: Iterable[Any] = _open_hugging_face(datasets, name, split)
        yield from map(dict, rows)
    except Exception as error:  # errors of the library's loaders and the network
        remedy = "Check data.hf_dataset (id, id:config or a local path) and data.hf_split"
        raise DataError(f"hf_dataset '{name}' (split '{split}'): {type(error).__name__}: {error}. {remedy}.") from error


def _open_hugging_face(datasets: Any, name: str, split: str) -> Iterable[Any]:
    # The library cannot stream slices and sums of splits.
    streaming = not any(character in split for character in "[]+%")
    dataset, _, config = name.partition(":")
    return datasets.load_dataset(dataset, config or None, split=split, streaming=streaming)
