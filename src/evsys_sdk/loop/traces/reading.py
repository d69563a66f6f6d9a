"""Files of traces -> traces: which format it is, what cannot be read, and how much of that is too much.

A record that cannot be read is counted with its reason and passed over; more of them than a share of the file is an
error, because then the format is not what it seems to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from pydantic_core import from_json

from ...errors import DataError, show, suggest
from .formats import openai_chat, otel
from .trace import BadRecord, Trace

FORMATS: Final[dict[str, ModuleType]] = {one.NAME: one for one in (otel, openai_chat)}
"""By name; the order is that in which a record is tried, the most telling first."""
AUTO: Final = "auto"
_LONGEST_RECORD: Final = 16_000_000
_LOOKED_AT: Final = 50
_REASONS: Final = 20

type Record = Mapping[str, Any]
type NumberedLines = Iterable[tuple[int, bytes]]
type NumberedRecords = Iterable[tuple[int, Record]]


@dataclass(slots=True)
class Counts:
    """What was read."""

    records: int = 0
    traces: int = 0
    bad: int = 0
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Reason -> where it was first seen."""
    formats: dict[str, str] = field(default_factory=dict[str, str])
    """File -> format."""

    def spoil(self, where: str, reason: str) -> None:
        self.bad += 1
        if len(self.reasons) < _REASONS:
            self.reasons.setdefault(reason, where)


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file, its format known."""

    path: Path
    format: str

    @classmethod
    def open(cls, path: Path, wanted: str = AUTO) -> TraceFile:
        """Tells the format by the first records; refuses what none of them is."""
        if not path.is_file():
            raise DataError(f"{path}: it cannot be read: there is no such file. Check the path.")
        if wanted != AUTO:
            if wanted not in FORMATS:
                hint = suggest(wanted, FORMATS) or f"There are {', '.join(FORMATS)}."
                raise DataError(f"--format {show(wanted)} is not known. {hint}")
            return cls(path, wanted)
        seen = 0
        for _, record in read_file(path, Counts().spoil):
            found = next((name for name, one in FORMATS.items() if one.is_mine(record)), None)
            if found:
                return cls(path, found)
            seen += 1
            if seen >= _LOOKED_AT:
                break
        raise DataError(
            f"{path}: none of its first {seen} records looks like one of {', '.join(FORMATS)}. Name the format with "
            "--format, or bring the file into OpenAI's chat format: one object a line, with messages."
        )

    def traces(self, counts: Counts) -> Iterator[Trace]:
        """The traces of the file, one at a time."""
        return self.read(read_file(self.path, counts.spoil), counts)

    def read(self, records: NumberedRecords, counts: Counts) -> Iterator[Trace]:
        """The traces in some records, which need not be in a file."""
        counts.formats[str(self.path)] = self.format
        for trace in self._read_each(FORMATS[self.format], records, counts):
            counts.traces += 1
            yield trace

    def _read_each(self, reader: ModuleType, records: NumberedRecords, counts: Counts) -> Iterator[Trace]:
        read: Callable[[Record], Iterator[Trace]] = reader.read
        for number, record in records:
            counts.records += 1
            try:
                yield from read(record)
            except BadRecord as error:
                counts.spoil(f"{self.path}:{number}", str(error))
            except (TypeError, ValueError, AttributeError, KeyError, IndexError, RecursionError) as error:
                counts.spoil(
                    f"{self.path}:{number}", f"its shape is not that of {self.format} ({type(error).__name__})"
                )


def read_file(path: Path, spoil: Callable[[str, str], None]) -> Iterator[tuple[int, Record]]:
    """The objects in a file with their numbers: lines of JSONL, a list, or several objects one after another."""
    try:
        if path.suffix == ".json":
            yield from _json_records(path, spoil)
        else:
            yield from _parse(_iter_lines(path, spoil), path, spoil)
    except (OSError, EOFError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: it cannot be read ({reason}). Check the path.") from error


def _iter_lines(path: Path, spoil: Callable[[str, str], None]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; one that is too long is passed over without being held in memory."""
    import gzip

    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        number = 0
        while line := file.readline(_LONGEST_RECORD):
            number += 1
            if len(line) < _LONGEST_RECORD or line.endswith(b"\n"):
                yield number, line
                continue
            spoil(f"{path}:{number}", f"it is longer than {_LONGEST_RECORD // 1_000_000} MB")
            # The rest of the line is passed over in parts, so that it is never whole in memory.
            while (rest := file.readline(_LONGEST_RECORD)) and not rest.endswith(b"\n"):
                pass


def _parse(lines: NumberedLines, path: Path, spoil: Callable[[str, str], None]) -> NumberedRecords:
    for number, line in lines:
        try:
            # Keys come again in every line and texts hardly ever, so that only keys are worth remembering.
            record = from_json(line, allow_inf_nan=False, cache_strings="keys")
        except ValueError:
            if line.strip():
                spoil(f"{path}:{number}", "it is not JSON")
            continue
        if record.__class__ is dict:
            yield number, record
        else:
            spoil(f"{path}:{number}", "it is no object")


def _json_records(path: Path, spoil: Callable[[str, str], None]) -> Iterator[tuple[int, Record]]:
    text = path.read_text(encoding="utf-8-sig")
    decoder, at, number = json.JSONDecoder(), 0, 0
    while at < len(text):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at >= len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:  # what follows cannot be found any more
            raise DataError(f"{path}: from character {at + 1} on this is not JSON ({error}). Copy it again.") from None
        for one in cast(list[Any], value) if isinstance(value, list) else [value]:
            number += 1
            if isinstance(one, dict):
                yield number, cast(Record, one)
            else:
                spoil(f"{path}: record {number}", "it is no object")
