"""Files of traces -> traces: which format it is, what cannot be read, and how much of that is too much.

A record that cannot be read is counted with its reason and skipped; more of them than a share of the file is an
error, because then the format is not what it seems to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from ...data.jsonl import cannot_read, iter_numbered_rows
from ...errors import DataError, show, suggest
from .formats import openai_chat, otel
from .trace import BadRecord, Trace

FORMATS: Final[dict[str, ModuleType]] = {one.NAME: one for one in (otel, openai_chat)}
"""By name; the order is that in which a record is tried, the most telling first."""
AUTO: Final = "auto"
_LOOKED_AT: Final = 50
_REASONS: Final = 20

type Record = Mapping[str, Any]
type Spoil = Callable[[str, str], None]
"""Called with the place of a record that cannot be read, and the reason."""


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    name: str = ""
    records: int = 0
    traces: int = 0
    added: int = 0
    duplicates: int = 0
    with_reward: int = 0
    bad_records: int = 0
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Reason -> where it was first seen."""
    redacted: dict[str, int] = field(default_factory=dict[str, int])
    """Kind of secret or personal data -> how many were removed."""
    formats: dict[str, str] = field(default_factory=dict[str, str])
    """File -> format."""

    def spoil(self, where: str, reason: str) -> None:
        """Count a record that cannot be read."""
        self.bad_records += 1
        if len(self.reasons) < _REASONS:
            self.reasons.setdefault(reason, where)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_format(path: Path, wanted: str = AUTO) -> str:
    """The format of a file by its first records, or the one that is named; refuses what none of them is."""
    if wanted != AUTO:
        if wanted not in FORMATS:
            hint = suggest(wanted, FORMATS) or f"There are {', '.join(FORMATS)}."
            raise DataError(f"--format {show(wanted)} is not known. {hint}")
        return wanted
    first = [record for _, record in islice(read_file(path, ImportReport().spoil), _LOOKED_AT)]
    for record in first:
        if (found := next((name for name, one in FORMATS.items() if one.is_mine(record)), None)) is not None:
            return found
    raise DataError(
        f"{path}: none of its first {len(first)} records looks like one of {', '.join(FORMATS)}. Name the format with "
        "--format, or bring the file into OpenAI's chat format: one object a line, with messages."
    )


def read_traces(
    records: Iterable[tuple[int, Record]], format: str, report: ImportReport, *, where: str
) -> Iterator[Trace]:
    """The traces in numbered records, one at a time."""
    report.formats[where] = format
    read: Callable[[Record], Iterator[Trace]] = FORMATS[format].read
    for number, record in records:
        report.records += 1
        try:
            for trace in read(record):
                report.traces += 1
                yield trace
        except BadRecord as error:
            report.spoil(f"{where}:{number}", str(error))
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, RecursionError) as error:
            report.spoil(f"{where}:{number}", f"its shape is not that of {format} ({type(error).__name__})")


def read_file(path: Path, spoil: Spoil) -> Iterator[tuple[int, Record]]:
    """The objects in a file with their numbers: lines of JSONL, a list, or several objects one after another."""
    if path.suffix == ".json":
        return _json_records(path, spoil)
    return iter_numbered_rows(path, lambda number, _: spoil(f"{path}:{number}", "it is not a JSON object"))


def _json_records(path: Path, spoil: Spoil) -> Iterator[tuple[int, Record]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise cannot_read(path, error) from error
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
                spoil(f"{path}: record {number}", "it is not a JSON object")
