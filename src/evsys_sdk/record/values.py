"""Lenient readers of the JSON in records.

A missing, half-written or damaged file gives an empty value, never an exception, so that history shows what is left.
`load_object` is strict, for decisions that depend on the content.
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

# `Any`, so that a checked value needs no `cast`, which costs a call per value.
DICT: Any = dict
LIST: Any = list

UNFINISHED = "unfinished"
"""Ending of an experiment that has not ended: it is running or was killed."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note of a person or an agent about an experiment."""

    text: str
    time: float | None = None
    author: str = ""


def read_object(path: Path | str) -> Object | None:
    """The JSON object in a file; None if it is missing or damaged."""
    try:
        return parse_object(read_whole(path) or b"")
    except OSError:
        return None


def read_json(path: Path) -> Any:
    """The JSON value in a file; None if it is missing or damaged."""
    try:
        return json.loads(read_whole(path) or b"null")
    except (OSError, ValueError, RecursionError):
        return None


def load_object(path: Path) -> Object:
    """The JSON object in an existing file; a damaged file is an error."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: this file is damaged ({error}). Move it away, or start a new attempt.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: this file should hold one JSON object. Move it away, or start a new attempt.")
    return cast(Object, content)


def read_lines(path: Path) -> Iterator[Object]:
    """The complete JSON objects of a JSONL file, oldest first; empty if it cannot be read."""
    with suppress(OSError, ValueError):  # records that were read before an error stay
        yield from read_records(path)


def subfolders(folder: Path) -> list[str]:
    """The names of the visible folders in a folder; empty if it cannot be read."""
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
    """The object at a path below `value`; empty if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, DICT) else None
    return value if isinstance(value, DICT) else {}


def find_row(rows: Iterable[Object], key: str, value: Any) -> Object:
    """The first row with this value; empty if there is none."""
    for row in rows:
        if row.get(key) == value:
            return row
    return {}


def items(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty list."""
    return value if isinstance(value, LIST) else []


def text(value: Any) -> str:
    """`value` if it is text, else empty text."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """`value` as a finite number; None if it is none."""
    if type(value) is float:  # the most frequent type
        return value if isfinite(value) else None
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    try:
        converted = float(value)
    except OverflowError:  # JSON integers have any length
        return None
    return converted if isfinite(converted) else None


def whole(value: Any) -> int | None:
    """`value` truncated to an integer; None if it is no finite number."""
    finite = number(value)
    return None if finite is None else int(finite)


def mtime(path: Path) -> float | None:
    """The modification time of a file or folder; None if it is missing."""
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return None


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Modification time and size of a file, to detect changes; None if it is missing."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size
