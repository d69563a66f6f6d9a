"""Invalid rows: collected over one pass, then reported together or skipped and counted.

bad = BadRows(skip=data.on_bad_row == "skip")
rows = list(apply_transforms(load_rows(data, store=store, bad=bad), transforms, bad=bad))
bad.count  # how many were left out
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..errors import DataError
from ..protocols import Row

_SHOWN = 5
"""Maximum number of row numbers and of different reasons in a report."""
_REMEDY = "Correct them, or leave them out with `on_bad_row: skip`."
_UNREAD = "cannot be read: "


class MissingValueError(DataError):
    """A required field of a row has no value."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class BadRows:
    """The bad rows of one pass over a source."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.number: int | None = None
        """Number of the raw row being read; None if all rows are read before transforms."""
        self._read = 0
        self._first: DataError | None = None
        self._numbers: dict[tuple[str, str], list[int]] = {}
        """(place, problem) -> row numbers."""
        self._unread: dict[tuple[str, str], str] = {}
        """(place, problem) of unreadable rows -> the message of the first."""

    @property
    def count(self) -> int:
        return sum(map(len, self._numbers.values()))

    def watch(self, rows: Iterable[tuple[int, Row]]) -> Iterator[Row]:
        """The numbered rows of a source, with the current number recorded."""
        for number, row in rows:
            self.number = number
            self._read += 1
            yield row
        self.number = None

    def note_unread(self, number: int, error: DataError) -> None:
        """Record a row that its source could not read; the error names the place."""
        self._read += 1
        self._first = self._first or error
        match = re.fullmatch(rf"(.+?)(?::{number}|: row {number} \(line \d+\)): (.+)", str(error), re.DOTALL)
        key = (match[1], f"{_UNREAD}{match[2].rstrip('.')}") if match else ("", str(error))
        self._unread.setdefault(key, str(error).rstrip("."))
        self._numbers.setdefault(key, []).append(number)

    def note(self, place: str, error: Exception, full: DataError, number: int) -> None:
        """Record a refused row; `full` is the error to raise if no other row is bad."""
        has_none = isinstance(error, MissingValueError)
        reason = f"have no `{error.field}`" if has_none else f"are refused: {str(error).rstrip('.')}"
        self._first = self._first or full
        self._numbers.setdefault((place, reason), []).append(number)

    def finish(self) -> None:
        """Raise the report, unless bad rows are skipped and others remain."""
        if self._first is None or (self.skip and self.count < self._read):
            return
        if self.count == 1:
            raise self._first
        if self.count == self._read and len(self._numbers) == 1:  # an error of the config, not of the rows
            raise DataError(f"{self._first} The same holds for all {self._read} rows.")
        raise DataError(f"{self.report()}. {_REMEDY}")

    def report(self) -> str:
        """The problems with their row counts and numbers."""
        parts: list[str] = []
        last = ""
        for (place, reason), numbers in list(self._numbers.items())[:_SHOWN]:
            if not place:  # the message names its row
                parts.append(reason.rstrip("."))
                continue
            if len(numbers) == 1 and (only := self._unread.get((place, reason))):
                parts.append(only.removeprefix(f"{place}: ") if place == last else only)
                last = place
                continue
            shown = ", ".join(map(str, numbers[:_SHOWN])) + (
                f" and {len(numbers) - _SHOWN} more" if numbers[_SHOWN:] else ""
            )
            counted = f"{len(numbers)} of {self._read} rows {reason}: row{'s' * (len(numbers) > 1)} {shown}"
            parts.append(counted if place == last else f"{place}: {counted}")
            last = place
        others = sum(len(numbers) for numbers in list(self._numbers.values())[_SHOWN:])
        return "; ".join(parts) + (f"; and {others} more rows for other reasons" if others else "")
