"""`in_memory`: files in this process's memory, for tests and small examples.

Values are stored as JSON text, so reads return copies, and values that cannot be written to a real file are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from ...config.base import Strict
from ...errors import DataError, suggest
from ...protocols import Row
from ...record.jsonable import dump_json, dump_line
from ..jsonl import not_an_object, parse_json
from ..shapes import is_object


class InMemoryDataStoreConfig(Strict):
    """Initial content."""

    files: dict[str, list[dict[str, Any]]] = {}
    """Path -> rows."""


class InMemoryDataStore:
    """Files in this process's memory."""

    name: ClassVar[str] = "in_memory"
    Config = InMemoryDataStoreConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        # As JSON, so that readers get copies and values without a JSON form are refused.
        self._files: dict[str, Sequence[bytes]] = {}
        self._lock = threading.Lock()
        for path, rows in self.cfg.files.items():
            self.write_jsonl(path, rows)

    def read_jsonl(self, path: str) -> Iterator[Row]:
        """The rows of a file, lazily."""
        lines = self._find(path)
        for number, line in enumerate(lines, 1):
            row = parse_json(line, f"{path}:{number}")
            if not is_object(row):
                raise not_an_object(row, f"{path}:{number}")
            yield row

    def write_jsonl(self, path: str, rows: Iterable[Row]) -> int:
        """Replace a file by rows; returns their number."""
        lines = [dump_line(row, f"{path}: row {number}") for number, row in enumerate(rows, 1)]
        with self._lock:
            self._files[_check_path(path)] = lines
        return len(lines)

    def read_json(self, path: str) -> Any:
        """The value of a file."""
        return parse_json(b"".join(self._find(path)), path)

    def write_json(self, path: str, value: Any) -> None:
        """Replace a file by a value."""
        text = dump_json(value, path)
        with self._lock:
            self._files[_check_path(path)] = [text]

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        with self._lock:
            return path in self._files

    def list(self, prefix: str = "") -> Sequence[str]:
        """Files whose path starts with `prefix`, sorted."""
        with self._lock:
            return sorted(path for path in self._files if path.startswith(prefix))

    def _find(self, path: str) -> Sequence[bytes]:
        with self._lock:
            if path in self._files:
                return self._files[path]
            paths = sorted(self._files)
        hint = suggest(path, paths) or "Write it first, or give it in data_store.params.files."
        raise DataError(
            f"{path}: the in_memory data store has no such file. It has: {', '.join(paths) or 'none'}. {hint}"
        )


def _check_path(path: str) -> str:
    if not path:
        raise DataError("a path in the data store must not be empty.")
    return path
