"""`predictions.jsonl`: every attempt on disk as soon as it ends, so that a killed evaluation goes on where it was.

The first line says which model was asked and how; each further line is one attempt. A file about another model, another
way of asking or another question under the same id is put aside under a number, never mixed in. What was predicted and
how it matches is worked out anew each time, so a corrected target or alias costs no new answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ...data.shapes import is_object
from ...errors import EvalError
from ...files import atomic_write
from ...log import get_logger
from ...record.jsonable import encode_line
from ...redact import redact_text
from .dataset import EvalRow
from .scoring import Attempt, RowResult, attempt_record

_HEADER = "evaluation"
_KEPT = ("completion", "truncated", "tokens", "cost_usd", "seconds")


class Journal:
    """The attempts of one evaluation; without a path, only in memory."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.answers: dict[tuple[str, int], Attempt] = {}
        """By row and number; only attempts with an answer, because the others are made again."""
        self._header: dict[str, Any] = {_HEADER: dict(identity)}
        self._others: list[dict[str, Any]] = []
        self._descriptor: int | None = None

    @classmethod
    def open(cls, path: Path | None, identity: Mapping[str, Any], rows: Sequence[EvalRow]) -> Self:
        """Take up what an earlier process left of the same evaluation, or begin."""
        journal = cls(path, identity)
        if path is None:
            return journal
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not journal._take_up(path, {row.id: row for row in rows}):
                journal = cls(path, identity)
                _put_aside(path)
            journal._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            if os.fstat(journal._descriptor).st_size == 0:
                journal._write(journal._header)
        except OSError as error:
            raise EvalError(f"{path}: predictions cannot be kept there: {error}. Choose another folder.") from error
        return journal

    def append(self, row: EvalRow, attempt: Attempt) -> None:
        """Keep an attempt."""
        if not attempt.failed:
            self.answers[row.id, attempt.number] = attempt
        if self._descriptor is not None:
            self._write(attempt_record(row, attempt))

    def finish(self, results: Sequence[RowResult]) -> None:
        """Write the file anew: in the order of the rows, one line an attempt, matched as it was scored."""
        if self.path is None:
            return
        records = [record for result in results for record in result.to_dicts()]
        there = {(record["id"], record["attempt"]) for record in records}
        others = [record for record in self._others if (record["id"], record["attempt"]) not in there]
        with atomic_write(self.path) as file:
            file.writelines(encode_line(record, str(self.path)) for record in (self._header, *records, *others))

    def close(self) -> None:
        """Close the file; doing it twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, record: dict[str, Any]) -> None:
        assert self._descriptor is not None
        line = memoryview(encode_line(record, str(self.path)))
        while line:
            line = line[os.write(self._descriptor, line) :]

    def _take_up(self, path: Path, rows: Mapping[str, EvalRow]) -> bool:
        data = path.read_bytes()
        complete = data[: data.rfind(b"\n") + 1]
        header, *lines = complete.split(b"\n")[:-1] or [b""]
        if header and _parsed(header) != json.loads(encode_line(self._header, str(path))):
            return False
        for number, line in enumerate(lines, 2):
            record = _parsed(line)
            if record is None or not _is_attempt(record):
                get_logger(__name__).warning("%s:%d: this line is damaged; its attempt is made again.", path, number)
                continue
            row = rows.get(record["id"])
            if row is not None and record.get("prompt") not in (row.question, redact_text(row.question)):
                return False
            self._remember(record, row)
        if len(complete) < len(data):  # what a killed process leaves
            os.truncate(path, len(complete))
        return True

    def _remember(self, record: dict[str, Any], row: EvalRow | None) -> None:
        if record["completion"] is None:
            return
        self._others.append(record)  # attempts and rows that are not wanted now may be wanted again
        if row is not None:
            key = (row.id, record["attempt"])
            self.answers[key] = Attempt(record["attempt"], **{name: record[name] for name in _KEPT})


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return None
    return value if is_object(value) else None


def _is_attempt(record: Mapping[str, Any]) -> bool:
    named = isinstance(record.get("id"), str) and isinstance(record.get("attempt"), int)
    return named and all(name in record for name in _KEPT) and isinstance(record["completion"], str | None)


def _put_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    get_logger(__name__).warning("%s is about another evaluation and is now called %s", path, aside.name)
