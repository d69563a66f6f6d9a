"""JSON as it is found in a record, whatever state that is in.

A file that is missing, half-written, damaged or not what its name says is a value here, never an exception: history
shows what is left. Where a decision hangs on it, `load_object` says what is wrong and what to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, cast

from ..errors import DataError
from .jsonl_file import parse_object, read_records, read_whole

type Object = dict[str, Any]

# As `Any`, so that what is checked by them needs no cast, which would be a call for every value of a record.
_DICT: Any = dict
_LIST: Any = list

UNFINISHED = "unfinished"
"""Of an experiment without an end; a reader tells at the moment of asking whether it is running or was killed."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person or an agent wrote down about an experiment."""

    text: str
    time: float | None = None
    author: str = ""


def read_object(path: Path | str) -> Object | None:
    """The JSON object in a file; None when there is none that can be read."""
    try:
        return parse_object(read_whole(path) or b"")
    except OSError:
        return None


def read_json(path: Path) -> Any:
    """Whatever JSON is in a file; None when there is none that can be read."""
    try:
        return json.loads(read_whole(path) or b"null")
    except (OSError, ValueError, RecursionError):
        return None


def load_object(path: Path) -> Object:
    """The JSON object in a file that must be there; what is damaged is an error."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: this file is damaged ({error}). Move it away, or start a new attempt.") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: this file should hold one JSON object. Move it away, or start a new attempt.")
    return cast(Object, found)


def read_lines(path: Path) -> Iterator[Object]:
    """The complete JSON objects of a JSONL file, oldest first; nothing where it cannot be read."""
    with suppress(OSError, ValueError):  # also in the middle of it: what was read until then stands
        yield from read_records(path)


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, without hidden ones; what cannot be looked at is none."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and _is_dir(entry)]
    except (OSError, ValueError):
        return []


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def part(value: Any, *path: str) -> Object:
    """The object at a path below `value`; an empty one where there is something else."""
    for key in path:
        value = value.get(key) if isinstance(value, _DICT) else None
    return value if isinstance(value, _DICT) else {}


def find_row(rows: Iterable[Object], key: str, value: Any) -> Object:
    """The first row with this value; an empty one when there is none."""
    for row in rows:
        if row.get(key) == value:
            return row
    return {}


def items(value: Any) -> list[Any]:
    """`value` if it is a list, else nothing."""
    return value if isinstance(value, _LIST) else []


def text(value: Any) -> str:
    """`value` if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """`value` as a finite number, if it is one."""
    if type(value) is float:  # most are, and there are many
        return value if isfinite(value) else None
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON has whole numbers of any length
        return None
    return found if isfinite(found) else None


def whole(value: Any) -> int | None:
    """`value` as a whole number, if it is a finite one."""
    found = number(value)
    return None if found is None else int(found)


def mtime(path: Path) -> float | None:
    """When a file or folder was last changed."""
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return None


def stamp_of(path: Path) -> tuple[int, int] | None:
    """What changes when a file does: its time and its size; None where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size
