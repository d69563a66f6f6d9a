"""Values as JSON: strict for data files (`data/jsonl.py`), lenient for records.

A record must be written even if a value has a type that JSON does not have.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, cast

from ..errors import DataError, show
from ..redact import is_suspicious, redact


def dump_line(row: Any, where: str) -> bytes:
    """One row as a JSONL line."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: a row must be a dict, not {type(row).__name__} ({show(row)}).")
    return dump_json(row, where) + b"\n"


def dump_json(value: Any, where: str, *, indent: int | None = None) -> bytes:
    """A value as strict JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).encode()
    except (TypeError, ValueError, RecursionError) as error:
        remedy = "Use only text, finite numbers, true/false, null, lists and dicts"
        raise DataError(f"{where}: cannot be written as JSON: {error}. {remedy}. Value: {show(value)}") from error


def encode_line(record: dict[str, Any], where: str) -> bytes:
    """A record as one JSONL line without secrets; values that are not JSON are converted by `jsonable`."""
    try:
        line = dump_line(record, where)
    except DataError:  # converted only on failure, because copying costs more than writing
        line = dump_line(record := jsonable(record), where)
    return dump_line(redact(record), where) if is_suspicious(line.decode()) else line


def jsonable(value: Any) -> Any:
    """`value` with all types that JSON lacks converted to the closest JSON type."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()  # a lone surrogate cannot be encoded
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else nonfinite_text(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(inner) for inner in cast(Iterable[Any], value)]
    return _foreign(value)


def _foreign(value: Any) -> Any:
    """A dataclass, pydantic model or array as JSON; anything else as its text."""
    if not isinstance(value, type):
        if dataclasses.is_dataclass(value):
            return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
        for method in ("model_dump", "tolist"):  # pydantic models; NumPy arrays and scalars, tensors
            if hasattr(value, method):
                return jsonable(getattr(value, method)())
    return jsonable(str(value))


def nonfinite_text(number: float) -> str:
    """`NaN`, `Infinity` or `-Infinity`, which Python's `float` and JavaScript's `Number` both parse."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
