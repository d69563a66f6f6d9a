"""Read traces from files: detect the format, and count bad records.

A record that cannot be read is counted with its reason and skipped. Too large a share of them is an error of the
import, because the format is then probably wrong.
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

FORMATS: Final[dict[str, ModuleType]] = {module.NAME: module for module in (otel, openai_chat)}
"""Name -> module, in the order of detection, the most specific first."""
AUTO: Final = "auto"
_LOOKED_AT: Final = 50
_REASONS: Final = 20

type Record = Mapping[str, Any]
type Spoil = Callable[[str, str], None]
"""Called with the place of a bad record and the reason."""


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    name: str = ""
    records: int = 0
    traces: int = 0
    added: int = 0
    duplicates: int = 0
    with_reward: int = 0
    bad_records: int = 0
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Reason -> its first place."""
    redacted: dict[str, int] = field(default_factory=dict[str, int])
    """Kind of secret or personal data -> number of removals."""
    formats: dict[str, str] = field(default_factory=dict[str, str])
    """File -> format."""

    def spoil(self, where: str, reason: str) -> None:
        """Count a bad record."""
        self.bad_records += 1
        if len(self.reasons) < _REASONS:
            self.reasons.setdefault(reason, where)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_format(path: Path, requested: str = AUTO) -> str:
    """The named format, or the one of the file's first records; DataError if none matches."""
    if requested != AUTO:
        if requested not in FORMATS:
            hint = suggest(requested, FORMATS) or f"There are {', '.join(FORMATS)}."
            raise DataError(f"--format {show(requested)} is not known. {hint}")
        return requested
    first = [record for _, record in islice(read_file(path, ImportReport().spoil), _LOOKED_AT)]
    for record in first:
        if (matching := next((name for name, module in FORMATS.items() if module.is_mine(record)), None)) is not None:
            return matching
    raise DataError(
        f"{path}: none of its first {len(first)} records looks like one of {', '.join(FORMATS)}. Name the format with "
        "--format, or bring the file into OpenAI's chat format: one object a line, with messages."
    )


def read_traces(
    records: Iterable[tuple[int, Record]], format: str, report: ImportReport, *, where: str
) -> Iterator[Trace]:
    """The traces in numbered records, as a stream."""
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
        except (ValueError, RecursionError) as error:  # the next record cannot be located
            raise DataError(f"{path}: from character {at + 1} on this is not JSON ({error}). Copy it again.") from None
        for record in cast(list[Any], value) if isinstance(value, list) else [value]:
            number += 1
            if isinstance(record, dict):
                yield number, cast(Record, record)
            else:
                spoil(f"{path}: record {number}", "it is not a JSON object")
