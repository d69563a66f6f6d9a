"""`local`: a folder on this machine.

Paths are relative to the root and may not leave it by `..`. Symbolic links below the root are followed for reading, but
never for writing outside it. Absolute paths are read-only. Writes are atomic.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from ...config.base import Strict
from ...errors import DataError, closest, show
from ...files import atomic_write
from ...paths import in_project
from ...protocols import Row
from ...record.jsonable import dump_json
from ..jsonl import read_json, read_jsonl, write_jsonl
from ..task_source import is_task_source, locate_rows


class LocalDataStoreConfig(Strict):
    """Location of the folder."""

    root: str = "."
    """Root of relative paths; itself relative to the project root."""


class LocalDataStore:
    """Files below a folder on this machine."""

    name: ClassVar[str] = "local"
    Config = LocalDataStoreConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self.root = Path(os.path.abspath(in_project(self.cfg.root)))

    def locate(self, path: str) -> Path:
        """The file or folder of a path of this store."""
        return self._find(path)

    def read_jsonl(self, path: str) -> Iterator[Row]:
        """The rows of a file, lazily."""
        return read_jsonl(self._find(path))

    def write_jsonl(self, path: str, rows: Iterable[Row]) -> int:
        """Replace a file by rows; returns their number."""
        target = self._writable(path)
        with _explain_failures(target):
            return write_jsonl(target, rows)

    def read_json(self, path: str) -> Any:
        """The value of a file."""
        return read_json(self._find(path))

    def write_json(self, path: str, value: Any) -> None:
        """Replace a file by a value."""
        target = self._writable(path)
        text = dump_json(value, str(target), indent=2) + b"\n"
        with _explain_failures(target), atomic_write(target) as file:
            file.write(text)

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return _is_there(self._resolve(path)) and not self._resolve(path).is_dir()

    def list(self, prefix: str = "") -> Sequence[str]:
        """Files whose path below the root starts with `prefix`, sorted; hidden ones only if the prefix names them."""
        folder = PurePosixPath(prefix if prefix.endswith("/") or not prefix else PurePosixPath(prefix).parent)
        start, with_hidden = self._inside(str(folder)), PurePosixPath(prefix).name.startswith(".")
        paths: list[str] = []
        for here, folders, files in os.walk(start):
            folders[:] = [name for name in folders if not name.startswith(".")]  # in place, which prunes the walk
            below = Path(here).relative_to(start).as_posix()
            paths += [str(folder / below / name) for name in files if with_hidden or not name.startswith(".")]
        return sorted(path for path in paths if path.startswith(prefix))

    def _find(self, path: str) -> Path:
        file = self._resolve(path)
        if not _is_there(file):
            raise DataError(
                f"{file}: there is no such file (path {show(path)}, data store root {self.root}). {_remedy(file)}"
            )
        return file

    def _resolve(self, path: str) -> Path:
        expanded = self._check_path(path)
        if is_task_source(path):
            return locate_rows(path, train=True)
        return expanded if expanded.is_absolute() else self._inside(path, linked=True)

    def _writable(self, path: str) -> Path:
        expanded = self._check_path(path)
        if expanded.is_absolute() and not _real(expanded).is_relative_to(_real(self.root)):
            raise DataError(
                f"{path}: writing outside the data store's root {self.root} is refused. Use a path below it."
            )
        return expanded if expanded.is_absolute() else self._inside(path)

    def _inside(self, path: str, *, linked: bool = False) -> Path:
        target = self.root / path
        if linked and Path(os.path.abspath(target)).is_relative_to(self.root):
            return target
        # Resolve both: the root, and links below it, may point anywhere.
        if not _real(target).is_relative_to(_real(self.root)):
            raise DataError(
                f"{path}: this leads out of the data store's root {self.root}, to {_real(target)}. "
                "Use a path below the root, or an absolute path to read a file elsewhere."
            )
        return target

    def _check_path(self, path: str) -> Path:
        if not path or "\x00" in path:
            raise DataError(f"{show(path)} is not a path. Name a file, relative to the data store's root {self.root}.")
        try:
            return Path(path).expanduser()
        except RuntimeError as error:
            raise DataError(f"{path}: {error}. Write the path out.") from error


def _real(path: Path) -> Path:
    """The path with symbolic links followed."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a cycle of links, or an invalid name
        raise DataError(f"{show(str(path))} is not a usable path: {error}.") from error


def _remedy(missing: Path) -> str:
    """The most similar file; else the root of paths."""
    folder = missing.parent
    alike = [file.name for file in folder.iterdir() if file.suffix == missing.suffix] if folder.is_dir() else []
    guess = closest(missing.name, alike)
    if guess:
        return f"Did you mean '{guess}'?"
    return "Correct the path, or set data_store.params.root to the folder that paths start from."


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise DataError(f"{show(str(path))} is not a usable path: {error.strerror}.") from error


@contextmanager
def _explain_failures(target: Path) -> Generator[None]:
    """Name the file that could not be written; the system's message may name another."""
    try:
        yield
    except OSError as error:
        remedy = "Check that it is not a folder, that its folder can be written to and that the disk is not full"
        raise DataError(f"{target}: it cannot be written: {error}. {remedy}.") from error
