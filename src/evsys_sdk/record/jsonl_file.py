"""An append-only JSONL file that survives its writer.

Each record is one write of one whole line, so another process can follow the file, and a killed writer leaves at most
one half-written line, which the next one repairs. A run that resumes rewinds its files to the step it goes on from;
they then end up as if nothing had happened.

    file = JsonlFile(run_dir / "metrics.jsonl")
    file.rewind(next_step=21)
    file.append({"step": 21, "loss": 0.5})
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import DataError
from ..files import atomic_write
from ..log import get_logger
from .jsonable import encode_line

_BLOCK = 1 << 16


class JsonlFile:
    """One file, one writer; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._owner = os.getpid()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = _open_for_append(path)
            repair_last_line(path)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one record; it is in the file when this returns, or not at all."""
        line = memoryview(encode_line(record, str(self.path)))
        with self._lock:
            if self._descriptor is None:
                raise DataError(f"{self.path}: it was closed, so nothing can be added to it.")
            if os.getpid() != self._owner:
                raise DataError(f"{self.path}: a fork of the process that writes it cannot add to it.")
            start = os.lseek(self._descriptor, 0, os.SEEK_END)
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError as error:
                os.ftruncate(self._descriptor, start)  # the next record must not continue half of this one
                raise cannot_write(self.path, error) from error

    def rewind(self, next_step: int) -> None:
        """Drop every record of step `next_step` or later; a record without a step stays."""
        self.drop(lambda record: _is_number(record.get("step")) and record["step"] >= next_step)

    def drop(self, unwanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop some records; lines that are damaged are set aside in `<name>.damaged`, and that is said."""
        with self._lock:
            records = [_parse(line) for line in _lines(self.path)]
            keep = [record is not None and not unwanted(record) for record in records]
            if all(keep):
                return
            self._set_aside([record is None for record in records])
            with atomic_write(self.path) as file:
                file.writelines(itertools.compress(_lines(self.path), keep))
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = _open_for_append(self.path)

    def _set_aside(self, damaged: list[bool]) -> None:
        if not any(damaged):
            return
        aside = self.path.with_name(f"{self.path.name}.damaged")
        with aside.open("ab") as file:
            file.writelines(line.rstrip(b"\n") + b"\n" for line in itertools.compress(_lines(self.path), damaged))
        numbers = ", ".join(str(number) for number, bad in enumerate(damaged, 1) if bad)
        get_logger(__name__).warning("%s: damaged lines (%s) were moved to %s", self.path, numbers, aside.name)

    def close(self) -> None:
        """Close the file; doing it twice is fine."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The complete records of a file, which may still be growing; no file means none."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            record = _parse(line)
            if record is None:
                get_logger(__name__).warning("%s:%d: this line is damaged and was passed over", path, number)
            else:
                yield record


def repair_last_line(path: Path) -> None:
    """Cut off a half-written last line; one that lacks nothing but its end gets it."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, size)
        if start == size:
            return
        file.seek(start)
        if _parse(file.read()) is None:
            file.truncate(start)
        else:
            file.write(b"\n")


def cannot_write(path: Path, error: OSError) -> DataError:
    """Why a record could not be written, and what to do."""
    remedy = "Check that the folder may be written to and that the disk has room."
    return DataError(f"{path}: it cannot be written: {error.strerror or error}. {remedy}")


def _open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)


def _start_of_last_line(file: IO[bytes], size: int) -> int:
    """Where the text after the last line end begins; `size` when the file ends with a line end."""
    position = size
    while position > 0:
        begin = max(0, position - _BLOCK)
        file.seek(begin)
        found = file.read(position - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None  # pyright: ignore[reportUnknownVariableType]
