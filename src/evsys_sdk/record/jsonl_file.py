"""An append-only JSONL file that survives a killed writer.

Each record is one write of one whole line, so other processes can follow the file. A killed writer leaves at most one
half-written line, which the next writer repairs. A resumed run rewinds its files to the step it continues from; they
then equal those of an uninterrupted run.

    with JsonlFile(RunFiles(run_dir).logs.metrics) as file:
        file.rewind(next_step=21)
        file.append({"step": 21, "loss": 0.5})
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Self, cast

from ..errors import DataError
from ..files import atomic_write
from ..log import get_logger
from .jsonable import encode_line
from .lock import exclusive_use

_BLOCK = 1 << 16
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
"""Reads NaN and infinities as null, because they are not JSON."""
_WHITE = b" \t\r\n"
_forks = 0


def count_forks() -> int:
    """The number of forks that led to this process. Cheaper than `os.getpid`, which every line would call."""
    return _forks


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class JsonlFile:
    """Writer of one file; safe to use from several threads, and `append_after` also from several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._last, self._end = b"", -1
        """The last line without its line end, and the size of the file after it, as this process last saw them."""
        self._owner = _forks
        self.appended = 0
        """Number of lines written with `append_line`."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = _open_for_append(path)
            with exclusive_use(self._descriptor):  # another process may be writing half a line
                repair_last_line(path)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one record, whole or not at all."""
        self.append_line(encode_line(record, str(self.path)))

    def append_line(self, line: bytes, *, sync: bool = False) -> int:
        """Write an encoded record; with `sync`, wait until it is on disk.

        Returns `appended`, the number of lines so far.
        """
        with self._lock:
            self._write(line)
            if sync:
                os.fsync(self._open)
            self.appended += 1
            return self.appended

    def append_after(self, make: Callable[[bytes], dict[str, Any]]) -> None:
        """Write a record that `make` builds from the previous line (b"" for none), under a lock."""
        with self._lock, exclusive_use(self._open):
            if os.fstat(self._open).st_size != self._end:  # another process added lines, or was killed while adding one
                repair_last_line(self.path)
                self._last = _last_line(self.path)
            line = encode_line(make(self._last), str(self.path))
            self._write(line)
            self._last, self._end = line[:-1], os.fstat(self._open).st_size

    def rewind(self, next_step: int) -> None:
        """Drop every record of step `next_step` or later; a record without a step stays."""
        self.drop(lambda record: isinstance(step := record.get("step"), int | float) and step >= next_step)

    def drop(self, unwanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the `unwanted` records; damaged lines move to `<name>.damaged`, with a warning."""
        with self._lock:
            records = [parse_object(line) for line in _lines(self.path)]
            keep = [record is not None and not unwanted(record) for record in records]
            if all(keep):
                return
            self._set_aside([record is None for record in records])
            with atomic_write(self.path) as file:
                file.writelines(itertools.compress(_lines(self.path), keep))
            if self._descriptor is not None:  # it refers to the replaced file
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
        """Close the file; closing it twice has no effect."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> int:
        if self._descriptor is None:
            raise DataError(f"{self.path}: the file is closed, so nothing can be appended.")
        if self._owner != _forks:  # both processes would share a descriptor, but not the last line
            raise DataError(f"{self.path}: a forked process cannot append to it. Open it again there.")
        return self._descriptor

    def _write(self, line: bytes) -> None:
        descriptor, written = self._open, 0
        try:
            while written < len(line):
                written += os.write(descriptor, line[written:] if written else line)
        except OSError as error:
            if written:  # otherwise the next record would follow half a line
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise cannot_write(self.path, error) from error


def parse_text(text: bytes, path: Path | str, first: int = 1) -> Iterator[dict[str, Any]]:
    """The records in whole lines. Parsed at once; line by line if one is damaged, to warn with its number."""
    lines = text.split(b"\n")[:-1]
    try:
        records: Any = _DECODER.decode(f"[{b','.join(lines).decode()}]")
    except (ValueError, RecursionError):
        records = []
    if len(records) == len(lines) and all(type(record) is dict for record in records):
        return iter(cast(list[dict[str, Any]], records))
    return parse_lines(enumerate(lines, first), path)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The complete records of a file, which may still grow; empty without a file."""
    return parse_lines(complete_lines(path), path)


def parse_lines(lines: Iterable[tuple[int, bytes]], path: Path | str) -> Iterator[dict[str, Any]]:
    """The records in numbered lines of a file; damaged lines are skipped with a warning."""
    for number, line in lines:
        record = parse_object(line)
        if record is not None:
            yield record
        elif line.strip():
            get_logger(__name__).warning("%s:%d: this line is damaged and was skipped", path, number)


def complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines that end with a newline; a line that is being written is left out."""
    if (descriptor := _open_to_read(path)) is not None:
        with os.fdopen(descriptor, "rb", _BLOCK) as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.endswith(b"\n"))


def read_whole(path: Path | str) -> bytes | None:
    """The content of a small file; None if there is no file."""
    if (descriptor := _open_to_read(path)) is None:
        return None
    try:
        blocks = [os.read(descriptor, _BLOCK)]
        while len(blocks[-1]) == _BLOCK:  # a shorter block is the end of a regular file
            blocks.append(os.read(descriptor, _BLOCK))
        return b"".join(blocks)
    finally:
        os.close(descriptor)


def _open_to_read(path: Path | str) -> int | None:
    """Open a regular file; None for anything else, because reading a pipe could block forever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # a name with a null character
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # checking before would look the path up twice
        return descriptor
    os.close(descriptor)
    return None


def last_records(path: Path, most_bytes: int = 1 << 14) -> Iterator[dict[str, Any]]:
    """The records in the last `most_bytes` of a file, the latest first."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - most_bytes, 0))
            lines = file.read().split(b"\n")[:-1]  # the text after the last newline is being written
    except OSError:
        return
    # The first line may be cut at its start; it then is no JSON object.
    yield from (record for line in reversed(lines) if (record := parse_object(line)) is not None)


def repair_last_line(path: Path, *, keep_whole: bool = True) -> None:
    """Cut off a half-written last line. With `keep_whole`, a complete record only gets its missing newline."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, size)
        if start == size:
            return
        file.seek(start)
        if keep_whole and parse_object(file.read()) is not None:
            file.write(b"\n")
        else:
            file.truncate(start)


def cannot_write(path: Path, error: OSError) -> DataError:
    """The error for a failed write, with a remedy."""
    remedy = "Check the permissions of the folder and the free space of the disk."
    return DataError(f"{path}: cannot be written: {error.strerror or error}. {remedy}")


def _open_for_append(path: Path) -> int:
    # O_APPEND writes at the present end of the file, also after other processes have appended.
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)


def _start_of_last_line(file: IO[bytes], size: int) -> int:
    """The position after the last newline; `size` if the file ends with one."""
    position = size
    while position > 0:
        begin = max(0, position - _BLOCK)
        file.seek(begin)
        newline = file.read(position - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        position = begin
    return 0


def _last_line(path: Path) -> bytes:
    """The last line of a file that ends with a newline, without it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, max(size - 1, 0))  # before the final newline
        file.seek(start)
        return file.read()[:-1]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def find_repeated_keys(content: str) -> list[str]:
    """Keys that occur more than once in an object of a JSON text; parsers disagree on which one counts."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)

    json.loads(content, object_pairs_hook=collect)
    return repeated


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The object in a line or a small file; None if it is damaged or no object."""
    try:
        content = line.strip(_WHITE).decode()
        value, end = _DECODER.raw_decode(content)  # `decode` takes twice as long for short lines
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) and end == len(content) else None
