"""`metrics.csv` in the run's folder, for spreadsheets and one-liners.

A step is one row, a scoring another one with the same step; cells that a row has no value for are empty, so
`pandas.read_csv(path).groupby("step").last()` gives one row a step. A metric that first appears later adds a column.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import Field

from ...config.base import Strict
from ...errors import DataError
from ...files import atomic_write
from ...record.jsonl_file import cannot_write
from ...record.run_files.metrics import as_number
from ...training.callback import Callback, EvalRecord, RunControl, RunInfo

_STEP = "step"


class CsvMetricsConfig(Strict):
    """Params of the `csv_metrics` callback."""

    path: str = Field(default="metrics.csv", min_length=1)
    """The file, relative to the run's folder."""


class CsvMetrics(Callback):
    """Writes metrics and scores to a CSV file."""

    name = "csv_metrics"
    Config = CsvMetricsConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = CsvMetricsConfig(**params)
        self._path = Path(self.cfg.path)
        self._columns: list[str] = [_STEP]
        self._file: IO[str] | None = None

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        """Open the file, without what an earlier attempt wrote after the step this one continues from."""
        self._path = info.run_dir / self.cfg.path
        header, rows = _read(self._path)
        self._columns = header or [_STEP]
        self._rewrite(row for row in rows if int(row[0]) < info.next_step and not self._is_repeated(row, info))

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._append(step, metrics)

    def on_eval(self, record: EvalRecord) -> None:
        self._append(record.step, record.named_metrics)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_repeated(self, row: Sequence[str], info: RunInfo) -> bool:
        line: dict[str, Any] = {name: cell for name, cell in zip(self._columns, row, strict=False) if cell != ""}
        return any(scoring.is_of({**line, _STEP: int(row[0])}) for scoring in info.repeats)

    def _append(self, step: int, metrics: Mapping[str, float]) -> None:
        # With all digits, so that whoever reads it gets the same number.
        cells = {name: repr(as_number(name, value)) for name, value in metrics.items() if name != _STEP}
        added = [name for name in cells if name not in self._columns]
        if added:  # a column more makes every row wider, so all of them are written again; it happens a few times
            _, rows = _read(self._path)
            self._columns += added
            self._rewrite(rows)
        if self._file is None:
            raise DataError(f"{self._path}: it is not open. Start the run before logging to it.")
        self._file.write(_csv_lines([[str(step), *(cells.get(name, "") for name in self._columns[1:])]]))
        self._file.flush()

    def _rewrite(self, rows: Iterable[Sequence[str]]) -> None:
        """Write header and rows anew, each as wide as the header, and continue appending."""
        width = len(self._columns)
        text = _csv_lines([self._columns, *([*row, *[""] * (width - len(row))] for row in rows)])
        # First: an open file would continue writing into the one that is replaced.
        self.close()
        try:
            with atomic_write(self._path, "w") as file:
                file.write(text)
            self._file = self._path.open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise cannot_write(self._path, error) from error


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and complete rows of a file; a row that a killed process left half-written is not one."""
    if not path.exists():
        return [], []
    try:
        text = path.read_text(encoding="utf-8")
        header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    except (UnicodeDecodeError, csv.Error):
        raise _not_ours(path) from None
    if not text.endswith("\n"):
        header, rows = (header, rows[:-1]) if rows else ([], [])
    if (header and header[0] != _STEP) or not all(row and row[0].isdecimal() for row in rows):
        raise _not_ours(path)
    return header, rows


def _not_ours(path: Path) -> DataError:
    return DataError(f"{path}: this is not a file that csv_metrics wrote. Move it away or set another `path`.")


def _csv_lines(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
