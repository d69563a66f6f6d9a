"""An append-only JSONL file that survives its writer.

Each record is one write of one whole line, so another process can follow the file, and a killed writer leaves at most
one half-written line, which the next one repairs. A run that resumes rewinds its files to the step it continues from;
they then end up as if nothing had happened.

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
"""NaN is no JSON, and must not be in an answer that is."""
_WHITE = b" \t\r\n"
_forks = 0


def count_forks() -> int:
    """How many forks lead to this process; asked at every line, where asking the system for a number is too slow."""
    return _forks


def _note_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class JsonlFile:
    """One file, one writer; safe to use from several threads. `append_after` also from several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._last, self._end = b"", -1
        """The last line without its end, and where the file ended after it, as far as this process knows."""
        self._owner = _forks
        self.appended = 0
        """How many lines this object has written with `append_line`."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = _open_for_append(path)
            with exclusive_use(self._descriptor):  # half a line may be that of another process, which is writing it
                repair_last_line(path)
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one record; it is in the file when this returns, or not at all."""
        self.append_line(encode_line(record, str(self.path)))

    def append_line(self, line: bytes, *, sync: bool = False) -> int:
        """Write a record that is a line already; with `sync` it has reached the disk itself when this returns.

        Returns the number of lines `appended`.
        """
        with self._lock:
            self._write(line)
            if sync:
                os.fsync(self._open)
            self.appended += 1
            return self.appended

    def append_after(self, make: Callable[[bytes], dict[str, Any]]) -> None:
        """Write a record that is made from the line before it (b"" for none), while no other process adds one."""
        with self._lock, exclusive_use(self._open):
            if os.fstat(self._open).st_size != self._end:  # somebody else added lines, or was killed at it
                repair_last_line(self.path)
                self._last = _last_line(self.path)
            line = encode_line(make(self._last), str(self.path))
            self._write(line)
            self._last, self._end = line[:-1], os.fstat(self._open).st_size

    def rewind(self, next_step: int) -> None:
        """Drop every record of step `next_step` or later; a record without a step stays."""
        self.drop(lambda record: isinstance(step := record.get("step"), int | float) and step >= next_step)

    def drop(self, unwanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop some records; lines that are damaged are set aside in `<name>.damaged`, with a warning."""
        with self._lock:
            records = [parse_object(line) for line in _lines(self.path)]
            keep = [record is not None and not unwanted(record) for record in records]
            if all(keep):
                return
            self._set_aside([record is None for record in records])
            with atomic_write(self.path) as file:
                file.writelines(itertools.compress(_lines(self.path), keep))
            if self._descriptor is not None:  # it leads to the file that was replaced, where no one would look
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> int:
        if self._descriptor is None:
            raise DataError(f"{self.path}: it was closed, so nothing can be added to it.")
        if self._owner != _forks:  # both would write through one descriptor, each with its own idea of the last line
            raise DataError(f"{self.path}: a fork of the process that writes it cannot add to it.")
        return self._descriptor

    def _write(self, line: bytes) -> None:
        descriptor, written = self._open, 0
        try:
            while written < len(line):
                written += os.write(descriptor, line[written:] if written else line)
        except OSError as error:
            if written:  # the next record must not continue half of this one
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise cannot_write(self.path, error) from error


def parse_text(text: bytes, path: Path | str, first: int = 1) -> Iterator[dict[str, Any]]:
    """The records in whole lines: all at once, and one by one where a line is none, to say which."""
    lines = text.split(b"\n")[:-1]
    try:
        together: Any = _DECODER.decode(f"[{b','.join(lines).decode()}]")
    except (ValueError, RecursionError):
        together = []
    if len(together) == len(lines) and all(type(record) is dict for record in together):
        return iter(cast(list[dict[str, Any]], together))
    return parse_lines(enumerate(lines, first), path)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The complete records of a file, which may still be growing; no file means none."""
    return parse_lines(complete_lines(path), path)


def parse_lines(lines: Iterable[tuple[int, bytes]], path: Path | str) -> Iterator[dict[str, Any]]:
    """The records in numbered lines of a file; a damaged one is skipped with a warning."""
    for number, line in lines:
        record = parse_object(line)
        if record is not None:
            yield record
        elif line.strip():
            get_logger(__name__).warning("%s:%d: this line is damaged and was passed over", path, number)


def complete_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that have their end, with their numbers; what a writer is in the middle of is none yet."""
    if (descriptor := _open_to_read(path)) is not None:
        with os.fdopen(descriptor, "rb", _BLOCK) as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.endswith(b"\n"))


def read_whole(path: Path | str) -> bytes | None:
    """What is in a small file; None where there is none."""
    if (descriptor := _open_to_read(path)) is None:
        return None
    try:
        found = [os.read(descriptor, _BLOCK)]
        while len(found[-1]) == _BLOCK:  # of a file, less than was asked for is the rest
            found.append(os.read(descriptor, _BLOCK))
        return b"".join(found)
    finally:
        os.close(descriptor)


def _open_to_read(path: Path | str) -> int | None:
    """A file, open; None where there is none, or something else: reading from a pipe would wait permanently."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # of a name with a null character
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # asking beforehand would look the path up twice
        return descriptor
    os.close(descriptor)
    return None


def last_records(path: Path, most_bytes: int = 1 << 14) -> Iterator[dict[str, Any]]:
    """The last records of a file, the latest first, as far as they are in its last bytes."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - most_bytes, 0))
            lines = file.read().split(b"\n")[:-1]  # what follows the last line end is being written
    except OSError:
        return
    # The first of them may be the end of a longer line, which closes more braces than it opens and is no object.
    yield from (record for line in reversed(lines) if (record := parse_object(line)) is not None)


def repair_last_line(path: Path, *, keep_whole: bool = True) -> None:
    """Cut off a half-written last line; one that lacks nothing but its end gets it, or goes too."""
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
    """Why a record could not be written, and what to do."""
    remedy = "Check that the folder may be written to and that the disk has room."
    return DataError(f"{path}: it cannot be written: {error.strerror or error}. {remedy}")


def _open_for_append(path: Path) -> int:
    # O_APPEND: the system itself puts every write at the end, wherever other processes have moved that to.
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


def _last_line(path: Path) -> bytes:
    """The last line of a file that ends with one, without its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, max(size - 1, 0))  # from before its own end, which would be found at once
        file.seek(start)
        return file.read()[:-1]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def find_repeated_keys(content: str) -> list[str]:
    """Keys that an object in a JSON text has more than once, of which readers take the one or the other."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        repeated.extend(key for key in dict.fromkeys(keys) if keys.count(key) > 1)

    json.loads(content, object_pairs_hook=look)
    return repeated


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The object in a line or a small file; None where there is none that can be read."""
    try:
        content = line.strip(_WHITE).decode()
        value, end = _DECODER.raw_decode(content)  # `decode` takes twice as long for a short line
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) and end == len(content) else None
