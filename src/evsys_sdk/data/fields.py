"""Access to fields of a row by dotted path.

A path is a key (`query`), or keys and list positions joined by dots (`messages.-1.content`, `user.profile.age`).
Readers search the row first and its `metadata` second, where typed rows keep additional fields. A key with dots takes
precedence over a path of the same spelling.

    query = reader("query")
    query({"query": "hi"})              # 'hi'
    query({"metadata": {"query": "hi"}})  # 'hi'
    query({})                           # MISSING
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import MISSING, DataError, closest, show
from ..protocols import Row
from .bad_rows import MissingValueError
from .shapes import is_list, is_object

type Reader = Callable[[Mapping[str, Any]], Any]


def reader(path: str) -> Reader:
    """A function that reads `path` from a row, or returns `MISSING`."""
    parts = _parts(path)

    def read(row: Mapping[str, Any]) -> Any:
        value = row.get(path, MISSING)
        return value if value is not MISSING else _look_further(row, path, parts)

    return read


def require(path: str) -> Reader:
    """Like `reader`, but a missing field is an error that lists the existing ones."""
    parts = _parts(path)

    def read(row: Mapping[str, Any]) -> Any:
        value = row.get(path, MISSING)
        if value is MISSING:
            value = _look_further(row, path, parts)
            if value is MISSING:
                raise no_such_field(path, row)
        return value

    return read


def no_such_field(path: str, row: Mapping[str, Any]) -> DataError:
    """The error for a row that lacks a field."""
    metadata = row.get("metadata")
    below = [str(key) for key in metadata] if is_object(metadata) else []
    names = [*map(str, row), *(f"metadata.{key}" for key in below)]
    guess = closest(path, [*map(str, row), *below])
    shown = ", ".join(names[:15]) + (" ..." if names[15:] else "")
    meant = f"; did you mean '{guess}'?" if guess else "."
    text = f"the row has no field '{path}'{meant} It has: {shown or 'nothing'}."
    # A misspelt field is an error of the config, not a missing value.
    return DataError(text) if guess else MissingValueError(text, path)


def with_field(row: Row, path: str, value: Any) -> Row:
    """A copy of the row with a field set; unaffected parts are shared."""
    head, *rest = (path,) if path in row else _parts(path)
    if not rest:
        return {**row, head: value}
    inner = row.get(head)
    if inner is not None and not is_object(inner):
        raise DataError(f"cannot set '{path}': '{head}' is not an object but {show(inner)}.")
    return {**row, head: with_field(inner or {}, ".".join(rest), value)}


def without_field(row: Row, path: str) -> Row:
    """A copy of the row without a field; the row itself if it has none."""
    if path in row:
        return {key: value for key, value in row.items() if key != path}
    head, _, rest = path.partition(".")
    inner = row.get(head)
    if not rest or not is_object(inner):
        return row
    shorter = without_field(inner, rest)
    return row if shorter is inner else {**row, head: shorter}


def read_exactly(row: Mapping[str, Any], path: str) -> Any:
    """A field of the row itself; of its metadata only if the path says so."""
    value = row.get(path, MISSING)
    return _walk(row, _parts(path)) if value is MISSING else value


def _look_further(row: Mapping[str, Any], path: str, parts: tuple[str, ...]) -> Any:
    """A field that is not a plain key of the row: nested, or in its metadata."""
    metadata = row.get("metadata")
    value = metadata.get(path, MISSING) if is_object(metadata) else MISSING
    # A literal key takes precedence over a path, in the metadata too.
    if value is MISSING and parts[1:]:
        value = _walk(row, parts)
        if value is MISSING:
            value = _walk(metadata, parts)
    return value


def _parts(path: str) -> tuple[str, ...]:
    if not path:
        raise DataError("a field name must not be empty.")
    return tuple(path.split("."))


def _walk(value: Any, parts: tuple[str, ...]) -> Any:
    for part in parts:
        if is_object(value):
            value = value.get(part, MISSING)
        elif is_list(value) and part.removeprefix("-").isdecimal():
            index = int(part)
            value = value[index] if -len(value) <= index < len(value) else MISSING
        else:
            return MISSING
    return value
