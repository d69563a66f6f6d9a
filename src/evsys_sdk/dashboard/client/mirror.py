"""The mirror: an append-only file with every record of a process, written before it is sent.

    <mirror>/<stream>.jsonl     the records; the first line is a header
    <mirror>/<stream>.sent      how many records a server has acknowledged; a cache that saves a request

A record is identified by its stream and its line number, so resending makes no duplicates. Each process writes a new
stream, so a copied folder can be sent from any machine, in any order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..._version import __version__
from ...errors import DataError, show
from ...files import write_json
from ...record.jsonable import encode_line
from ...record.jsonl_file import JsonlFile, cannot_write
from ...record.run_files.metrics import metrics_record
from .connection import new_id

FORMAT = 1
LARGEST_RECORD = 4 << 20
"""Bytes of one record; servers take batches of at least this size."""
BATCH_BYTES = 1 << 20
_SUFFIX = ".jsonl"


class Mirror:
    """The stream of this process."""

    def __init__(self, folder: Path, project: str) -> None:
        self.stream = new_id()
        self.path = folder / f"{self.stream}{_SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # readable by the owner only
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._file = JsonlFile(self.path)
        header = {"kind": "stream", "format": FORMAT, "stream": self.stream, "project": project, "sdk": __version__}
        self.append(encode_line({**header, "at": time.time()}, str(self.path)))

    def append(self, line: bytes) -> int:
        """Append a record and write it to disk; return the number of records in the stream."""
        return self._file.append_line(line)

    @property
    def length(self) -> int:
        """Number of records in the stream."""
        return self._file.appended

    def close(self) -> None:
        self._file.close()


def encode_record(record: dict[str, Any], what: str) -> bytes:
    """Encode a record as a line; raise if it exceeds the size limit of servers."""
    line = encode_line(record, what)
    if len(line) > LARGEST_RECORD:
        size = f"{len(line)} bytes, and one record of the dashboard has at most {LARGEST_RECORD}"
        raise DataError(f"{what} has {size}. Log less at once.")
    return line


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Consecutive records, as in the file."""

    first: int
    data: bytes
    """Whole lines."""
    next: int
    """The number of the next record."""
    is_full: bool
    """Whether the size limit was reached, so that more records may follow."""


class StreamReader:
    """Reads a stream in batches; the stream may still grow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset, self._number = 0, 0
        self._file: IO[bytes] | None = None

    @property
    def stream(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)

    def read(self, most: int = BATCH_BYTES) -> StreamBatch | None:
        """The next complete records, about `most` bytes; None if there are none yet."""
        if self._file is None:
            self._file = self.path.open("rb")
        self._file.seek(self.offset)  # a batch that was not acknowledged is read again
        data = self._file.read(most)
        if b"\n" not in data:
            data += self._file.readline()  # a record longer than a batch
        cut = data.rfind(b"\n") + 1  # the rest is an incomplete line
        if not cut:
            return None
        return StreamBatch(self._number, data[:cut], self._number + data.count(b"\n"), len(data) >= most)

    def advance(self, batch: StreamBatch) -> None:
        """Move past a batch that was read."""
        self.offset, self._number = self.offset + len(batch.data), batch.next

    def go_to(self, number: int) -> bool:
        """Move to a record; return False if the stream has fewer records."""
        self.offset = self._number = 0
        while self._number < number and (batch := self.read()) is not None:
            lines = batch.data.split(b"\n", number - batch.first)[:-1]
            self.offset += sum(len(line) + 1 for line in lines)
            self._number += len(lines)
        return self._number == number

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def streams(folder: Path) -> Iterator[Path]:
    """Yield the files of all streams in a mirror, oldest first."""
    yield from sorted(folder.glob(f"*{_SUFFIX}"))


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a stream; raise if it is invalid."""
    with path.open("rb") as file:
        line = file.readline(LARGEST_RECORD)
    try:
        header: Any = json.loads(line)
        # A copy under another name would be a new stream to the server, and its records would be stored twice.
        if header["kind"] != "stream" or header["stream"] != path.name.removesuffix(_SUFFIX):
            raise KeyError("kind")
        if header["format"] != FORMAT:
            raise DataError(f"{path}: it is of format {show(header['format'])}, which a newer version wrote. Upgrade.")
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{path}: this is no stream of the dashboard's mirror (it begins with {show(line[:60])}). Move it away."
        ) from None
    return header


def note_sent(path: Path, target: str, number: int, size: int) -> None:
    """Record that a server has everything before record `number`, which begins at byte `size`."""
    write_json(path.with_suffix(".sent"), {"target": target, "next": number, "bytes": size})


def is_sent(path: Path) -> bool:
    """Whether a server acknowledged the whole stream at some time."""
    return path.with_suffix(".sent").exists()


def is_all_sent(path: Path, target: str) -> bool:
    """Whether the server `target` acknowledged the whole stream as it is now."""
    try:
        noted: Any = json.loads(path.with_suffix(".sent").read_text(encoding="utf-8"))
        # Compared by size, because the process may have appended records since.
        return noted["target"] == target and noted["bytes"] == path.stat().st_size
    except (OSError, ValueError, KeyError, TypeError):
        return False


# Fast encoding of steps, because training waits for it at every step.
#
# Steps of one run differ in their numbers only. The text around the numbers is encoded and redacted once, as a form;
# later steps only fill in numbers. Other values are encoded like every other record.

_PROBE = 1_000_000
"""Probe value; the encoder redacts it if the metric name looks like a password."""
_MOST_FORMS = 1000
_PLAIN = {float, int}
_LARGEST_SUM = 1e300


class StepLines:
    """Encodes the steps of a process; thread-safe."""

    def __init__(self) -> None:
        self._forms: dict[tuple[str, ...], str] = {}

    def encode(self, run_id: str, step: int, metrics: Mapping[str, Any]) -> bytes:
        """Encode one step as a line, identical to the output of the general encoder."""
        names, values = (run_id, *metrics), (*metrics.values(),)
        form = self._forms.get(names)
        if form and _are_plain((step, *values)):
            return (form % (time.time(), step, *values)).encode()
        line = _encode(run_id, time.time(), step, metrics)
        if form is None:
            self._keep_form(run_id, tuple(metrics))
        return line

    def _keep_form(self, run_id: str, names: tuple[str, ...]) -> None:
        """Store the form of a step; "" if filling in numbers would differ from the general encoder."""
        fields = "".join(f", {_quote(name)}: %r" for name in names)
        form = f'{{"kind": "step", "run": {_quote(run_id)}, "at": %r, "line": {{"step": %r{fields}}}}}\n'
        numbers = (float(_PROBE), *[_PROBE] * (1 + len(names)))
        # The outputs differ if e.g. a metric is named `step` or its value is redacted.
        same = _encode(run_id, float(_PROBE), _PROBE, dict.fromkeys(names, _PROBE)) == (form % numbers).encode()
        # Bounds the memory of programs that keep using new metric names.
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        self._forms[run_id, *names] = form if same else ""


def _encode(run_id: str, at: float, step: int, metrics: Mapping[str, Any]) -> bytes:
    return encode_line({"kind": "step", "run": run_id, "at": at, "line": metrics_record(step, metrics)}, "a step")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("%", "%%")  # the form is filled in with `%`


def _are_plain(values: tuple[Any, ...]) -> bool:
    """Whether all values are finite `int` or `float`, which Python and JSON format alike; no NumPy types or `bool`."""
    try:
        # The sum is NaN or infinite if any value is, and comparisons with NaN are False.
        return _PLAIN.issuperset(map(type, values)) and abs(sum(values)) < _LARGEST_SUM
    except OverflowError:  # an integer too large for a float
        return False
