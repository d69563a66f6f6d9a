"""Files of rows by their ending: JSONL, JSON, CSV, Parquet, Arrow, and folders of them as Hugging Face writes them.

CSV cells are text, and empty cells are null. Nulls and `NaN` of Parquet files become null, dates become text.

    for number, row in read_row_file(Path("data/tickets.csv")): ...
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import DataError, MissingExtraError, show
from ..protocols import Row
from .jsonl import cannot_read, iter_numbered_rows, open_bytes, parse_json, read_json
from .shapes import is_list, is_object

type OnError = Callable[[int, DataError], None]
"""Receives the number of an unreadable row and its error."""

KINDS = {
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv", ".tab"), "csv"),
    **dict.fromkeys((".parquet", ".arrow"), "parquet"),
    ".json": "json",
}
"""Ending -> source_kind."""
_NO_ROWS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_SPLIT = re.compile(r"(?<![a-z])(train|test|validation|valid|val|dev)(?![a-z])")
_SAME_SPLIT = {"valid": "validation", "val": "validation", "dev": "validation"}
_LARGEST_CELL = 1 << 30


def kind_of(path: str | Path) -> str | None:
    """The source_kind of a path's ending."""
    return KINDS.get(Path(str(path).removesuffix(".gz")).suffix.lower())


def read_row_file(
    path: Path, kind: str = "jsonl", *, split: str = "train", on_error: OnError | None = None
) -> Iterator[tuple[int, Row]]:
    """The numbered rows of a file, or of a split of a folder. `jsonl` accepts any ending."""
    if path.is_dir():
        return _numbered(row for file in _files_of_split(path, split) for _, row in read_row_file(file))
    kind = kind_of(path) or kind if kind == "jsonl" else kind
    if kind == "csv":
        return _read_csv(path, on_error)
    if kind == "parquet":
        return _numbered(_read_arrow(path))
    if _is_one_value(path, kind):
        return check_rows(list_in(read_json(path), str(path)), str(path))
    return iter_numbered_rows(path, on_error)


def list_in(value: Any, path: str) -> list[Any]:
    """The rows of a JSON file: a list, or an object with one under `rows` or `data`."""
    rows = (
        next((value[key] for key in ("rows", "data") if is_list(value.get(key))), None) if is_object(value) else value
    )
    if is_list(rows):
        return rows
    raise DataError(
        f"{path}: expected a list of objects, or an object with such a list under 'rows' or 'data', not {show(value)}."
    )


def check_rows(rows: list[Any], where: str) -> Iterator[tuple[int, Row]]:
    """Numbered rows; refuses rows that are not objects."""
    for number, row in enumerate(rows, 1):
        if not is_object(row):
            raise DataError(f"{where}: row {number} must be an object, not {show(row)}.")
        yield number, row


def _numbered(rows: Iterator[Row]) -> Iterator[tuple[int, Row]]:
    return enumerate(rows, 1)


def _is_one_value(path: Path, kind: str) -> bool:
    """Whether a file is one JSON value. Some `.json` files have one object per line, some `.jsonl` files one list."""
    with _explained(path), open_bytes(path) as file:
        first, second = file.readline(), file.readline()
    try:
        value = parse_json(first, "")
    except DataError:
        if first.strip() and kind_of(path) is None and not first.lstrip().startswith((b"{", b"[")):
            endings = ", ".join(KINDS)
            remedy = f"Convert it to one that ends in {endings} (a spreadsheet: save it as CSV)"
            raise DataError(f"{path}: its ending names no format, and its first line is not JSON. {remedy}.") from None
        return kind == "json" or first.lstrip().startswith(b"[")
    return not second.strip() and (kind == "json" or is_list(value))


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except (OSError, EOFError) as error:
        raise cannot_read(path, error) from error


def _read_csv(path: Path, on_error: OnError | None) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(_LARGEST_CELL)
    with _explained(path), open_bytes(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", newline="")  # quoted cells may have line breaks
        head = lines.readline()
        cells = csv.reader(chain([head], lines), delimiter=_delimiter(path, head), strict=True)
        names: list[str] = []
        number = 0
        try:
            names = _check_names(path, next(cells, list[str]()))
            for values in cells:
                if not values:  # a blank line
                    continue
                number += 1
                if len(values) == len(names):
                    yield (
                        number,
                        {name: value if value.strip() else None for name, value in zip(names, values, strict=True)},
                    )
                    continue
                count = f"{len(values)} cell{'s' * (len(values) > 1)}"
                message = (
                    f"{path}: row {number} (line {cells.line_num}): {count}, but the header names "
                    f"{len(names)} columns. Quote cells that hold the delimiter, or correct the row."
                )
                if on_error is None:
                    raise DataError(message)
                on_error(number, DataError(message))
        except csv.Error as error:
            remedy = "Close every quoted cell, and write a quote inside one twice"
            raise DataError(f"{path}: row {number + 1} (line {cells.line_num}): {error}. {remedy}.") from error


def _delimiter(path: Path, head: str) -> str:
    if path.name.removesuffix(".gz").endswith((".tsv", ".tab")):
        return "\t"
    plain = re.sub(r'"[^"]*"', "", head)
    return max(",;\t|", key=plain.count)


def _check_names(path: Path, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    for at, name in enumerate(names, 1):
        if not name:
            raise DataError(f"{path}: column {at} has no name in the header ({show(names)}). Name it, or remove it.")
        if names.index(name) < at - 1:
            raise DataError(f"{path}: two columns are named {show(name)}. Rename one in the header.")
    return names


def _not_utf8(path: Path) -> DataError:
    """The error for a line that is not UTF-8, with the conversion command."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                break
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"{path}:{number}: {show(line[error.start : error.start + 1])} is not UTF-8"
                return DataError(f"{what}; the file is probably Latin-1 or Windows-1252. {_convert(path, 'CP1252')}")
    return DataError(f"{path}: the file is UTF-16, not UTF-8. {_convert(path, 'UTF-16')}")


def _convert(path: Path, encoding: str) -> str:
    return f"Convert it: iconv -f {encoding} -t UTF-8 {path} > {path.with_suffix(f'.utf8{path.suffix}')}"


def _read_arrow(path: Path) -> Iterator[Row]:
    try:
        pyarrow = import_module("pyarrow")
    except ImportError:
        raise MissingExtraError(f"reading {path}", "parquet") from None
    try:
        for batch in _batches(pyarrow, path):
            for row in batch.to_pylist():
                yield {name: _plain(value, f"{path}: column '{name}'") for name, value in row.items()}
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: it cannot be read: {error}. Check that it is a {path.suffix[1:]} file.") from error


def _batches(pyarrow: Any, path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        yield from import_module("pyarrow.parquet").ParquetFile(path).iter_batches()
        return
    with pyarrow.memory_map(str(path)) as source:
        try:
            yield from pyarrow.ipc.open_stream(source)  # the format of the `datasets` library
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(source)
            yield from map(file.get_batch, range(file.num_record_batches))


def _plain(value: Any, where: str) -> Any:
    """Convert a value to JSON."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_object(value):
        return {str(key): _plain(part, where) for key, part in value.items()}
    if is_list(value):
        return [_plain(part, where) for part in value]
    if isinstance(value, bytes):
        raise DataError(f"{where} holds bytes, which JSON cannot. Leave the column out, or store it as text.")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _files_of_split(folder: Path, split: str) -> list[Path]:
    """The files of one split of a folder: from `save_to_disk`, or by words in their paths."""
    if (folder / "dataset_dict.json").is_file():
        splits = read_json(folder / "dataset_dict.json")["splits"]
        if split not in splits:
            raise _no_split(folder, split, splits)
        folder = folder / split
    if (folder / "state.json").is_file():
        return [folder / file["filename"] for file in read_json(folder / "state.json")["_data_files"]]
    files = [path for path in sorted(folder.rglob("*")) if kind_of(path) and path.name not in _NO_ROWS]
    below = {path: path.relative_to(folder).as_posix().lower() for path in files}
    files = [path for path in files if not re.search(r"(^|/)\.", below[path]) and path.is_file()]
    words: dict[Path, list[str]] = {path: _SPLIT.findall(below[path]) for path in files}
    split_of = {path: _SAME_SPLIT.get(matches[-1], matches[-1]) for path, matches in words.items() if matches}
    if split_of or split != "train":
        files = [path for path in files if split_of.get(path) == _SAME_SPLIT.get(split, split)]
    if not files and split_of:
        raise _no_split(folder, split, sorted(set(split_of.values())))
    kinds = sorted({path.name.removesuffix(".gz").rpartition(".")[2] for path in files})
    if len(kinds) != 1:
        has = f"files of several kinds ({', '.join(kinds)})" if kinds else f"no file that ends in {', '.join(KINDS)}"
        raise DataError(f"{folder}: this folder has {has}. Name a file in it.")
    return files


def _no_split(folder: Path, split: str, splits: list[str]) -> DataError:
    return DataError(f"{folder}: there is no split '{split}'; it has {', '.join(splits)}. Set data.hf_split.")
