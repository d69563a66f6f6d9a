"""Where raw rows come from: a `DataConfig` -> a stream of dicts.

Transforms are not applied here (`pipeline.py` does) and nothing is typed yet (`rows.parse_rows` does).

    rows = load_rows(config.data, store=store, workspace=workspace)
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DataError, MissingExtraError, show
from ..paths import in_project
from ..protocols import DataStore, Row
from .jsonl import read_jsonl
from .shapes import is_list, is_object

if TYPE_CHECKING:
    from ..config import DataConfig

_HF_FILES = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
"""File ending -> the loader of the `datasets` library that reads it."""


class _Pulled(Protocol):
    @property
    def path(self) -> str | Path: ...


class DatasetWorkspace(Protocol):
    """The part of a workspace that rows are loaded from."""

    def pull_dataset(self, *, id: str | None = None, name: str | None = None) -> _Pulled:
        """A cached dataset, by id or by name."""
        ...


def load_rows(data: DataConfig, *, store: DataStore, workspace: DatasetWorkspace | None = None) -> Iterator[Row]:
    """The raw rows of a source, one at a time; a source without rows is an error."""
    empty = True
    for row in _rows(data, store, workspace):
        empty = False
        yield row
    if empty:
        raise DataError(f"{describe_source(data)} holds no rows. Check that it is the file you meant.")


def describe_source(data: DataConfig) -> str:
    """The source in words, for messages about its rows."""
    if data.dataset_id or data.dataset_name:
        return f"dataset '{data.dataset_id or data.dataset_name}'"
    if data.source_kind == "hf_dataset":
        return f"hf_dataset '{data.hf_dataset}' (split {data.hf_split})"
    return data.path or "data.rows"


def _rows(data: DataConfig, store: DataStore, workspace: DatasetWorkspace | None) -> Iterable[Row]:
    if data.dataset_id or data.dataset_name:
        return _from_workspace(data, workspace)
    match data.source_kind:
        case "jsonl":
            return store.read_jsonl(_need(data.path, data, "path"))
        case "json":
            path = _need(data.path, data, "path")
            return _check_rows(_list_in(store.read_json(path), path), path)
        case "in_memory":
            # Copied, because these rows belong to the config, and every arm of an experiment reads them again.
            return _check_rows(copy.deepcopy(_need(data.rows, data, "rows")), "data.rows")
        case "hf_dataset":
            return _from_hugging_face(_need(data.hf_dataset, data, "hf_dataset"), data.hf_split)


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


def _list_in(value: Any, path: str) -> list[Any]:
    """The rows of a JSON file: a list, or an object that holds one under `rows` or `data`."""
    found = (
        next((value[key] for key in ("rows", "data") if is_list(value.get(key))), None) if is_object(value) else value
    )
    if is_list(found):
        return found
    raise DataError(
        f"{path}: expected a list of objects, or an object with such a list under 'rows' or 'data', not {show(value)}."
    )


def _check_rows(rows: Iterable[Any], where: str) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if not is_object(row):
            raise DataError(f"{where}: row {number} must be an object, not {show(row)}.")
        yield row


def _from_hugging_face(name: str, split: str) -> Iterator[Row]:
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise MissingExtraError("data source 'hf_dataset'", "hf") from error
    try:
        found: Iterable[Any] = _open_hugging_face(datasets, name, split)
        yield from _check_rows((dict(row) for row in found), f"hf_dataset '{name}'")
    except DataError:
        raise
    except Exception as error:  # the library raises whatever its loaders and the network raise
        remedy = "Check data.hf_dataset (id, id:config or a local path) and data.hf_split"
        raise DataError(f"hf_dataset '{name}' (split '{split}'): {type(error).__name__}: {error}. {remedy}.") from error


def _open_hugging_face(datasets: Any, name: str, split: str) -> Iterable[Any]:
    path = in_project(name)
    # Slices and sums of splits cannot be streamed by the library; everything else can.
    streaming = not any(character in split for character in "[]+%")
    if path.is_file():
        kind = _HF_FILES.get(path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix, "")
        if not kind:
            raise DataError(f"{path}: a dataset file ends in one of {', '.join(_HF_FILES)}.")
        plain = split.partition("[")[0]  # the file is one split; `train[:10%]` is a part of it
        return datasets.load_dataset(kind, data_files={plain: str(path)}, split=split, streaming=streaming)
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        saved = datasets.load_from_disk(str(path))
        return _part(saved, split) if hasattr(saved, "keys") else saved
    if path.is_dir():
        return datasets.load_dataset(str(path), split=split, streaming=streaming)
    dataset, _, config = name.partition(":")
    return datasets.load_dataset(dataset, config or None, split=split, streaming=streaming)


def _part(saved: Any, split: str) -> Iterable[Any]:
    if split not in saved:
        raise DataError(f"the saved dataset has no split '{split}'; it has {', '.join(saved)}. Set data.hf_split.")
    return saved[split]
