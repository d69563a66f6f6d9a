"""The front of the YAML layer: a parsed document that knows where each value was written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .compose import Node, compose
from .source import MAX_BYTES, decode, read_bytes


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document: its data, and the line and column of every value in it."""

    data: Any
    """Plain dict, list, str, int, float, bool or None; nothing in it is shared, even where aliases were used."""
    file: str | None
    _root: Node = field(repr=False, compare=False)

    def position(self, path: tuple[str | int, ...]) -> tuple[int, int] | None:
        """Line and column (from 1) of the value at `path`, or of its key where it is a mapping entry.

        A path that leads nowhere gives the place of the nearest parent that exists. What came in through an alias or
        a merge is found where it was written.
        """
        node = place = self._root
        for step in path:
            if isinstance(node.value, dict) and isinstance(step, str) and step in node.value:
                place, node = node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and 0 <= step < len(node.value):
                place = node = node.value[step]
            else:
                break
        return place.line + 1, place.column + 1


def read_yaml(text: str | bytes, *, file: str | None = None) -> Document:
    """Parse one YAML document; `file` is only the name that errors show. The top level may be any value."""
    root = compose(decode(text, file), file)
    return Document(root.to_data(), file, root)


def read_yaml_file(path: Path, *, max_bytes: int = MAX_BYTES) -> Document:
    """Parse the YAML file at `path`, which must be a regular file of at most `max_bytes`."""
    return read_yaml(read_bytes(path, max_bytes), file=str(path))
