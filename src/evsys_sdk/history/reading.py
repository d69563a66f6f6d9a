"""Reading what experiments left behind, whatever state it is in.

A file that is missing, half-written, damaged or not what its name says is a value here, never an exception: history
shows what is left. Only the standard library is used, because `evsys history` must answer at once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

CONFIG, JOURNAL, CONCLUSION = "config.json", "journal.jsonl", "conclusion.json"
RESULT, SCORES, CHECKPOINTS = "run_result.json", "scores.jsonl", "checkpoints.jsonl"
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
"""NaN is no JSON, and must not be in an answer that is."""

type Object = dict[str, Any]


def read_object(path: Path) -> Object | None:
    """The JSON object in a file; None when there is none that can be read."""
    data = _content(path)
    return None if data is None else _parsed(data)


def read_lines(path: Path) -> Iterator[Object]:
    """The complete JSON objects of a JSONL file, oldest first; damaged lines are passed over."""
    for line in (_content(path) or b"").split(b"\n"):
        found = _parsed(line) if line else None
        if found is not None:
            yield found


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


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None  # reading from a pipe would wait for ever
    except (OSError, ValueError):
        return None


def _parsed(data: bytes) -> Object | None:
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return cast(Object, value) if isinstance(value, dict) else None


def part(value: Any, *path: str) -> Object:
    """The object at a path below `value`; an empty one where there is something else."""
    for key in path:
        value = cast(Object, value).get(key) if isinstance(value, dict) else None
    return cast(Object, value) if isinstance(value, dict) else {}


def matching(rows: Iterable[Object], key: str, value: Any) -> Object:
    """The first row with this value; an empty one when there is none."""
    for row in rows:
        if row.get(key) == value:
            return row
    return {}


def items(value: Any) -> list[Any]:
    """`value` if it is a list, else nothing."""
    return cast(list[Any], value) if isinstance(value, list) else []


def text(value: Any) -> str:
    """`value` if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """`value` as a finite number, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def first(source: Mapping[str, Any], *names: str) -> Any:
    """The first of several spellings of a key that has a value."""
    return next((source[name] for name in names if source.get(name) is not None), None)


def mtime(path: Path) -> float | None:
    """When a file or folder was last changed."""
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return None
