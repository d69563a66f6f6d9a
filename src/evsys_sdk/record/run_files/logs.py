"""The `logs/` folder of a run: metrics, scores and predictions, which log stores and callbacks write as lines.

A resumed run drops the lines of the steps that it repeats, so that reproducible files equal those of an uninterrupted
run byte by byte. The `last_*` functions serve observers of a live run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ...files import atomic_write, write_json, write_text
from ...redact import redact_text
from ..jsonable import encode_line, jsonable
from ..jsonl_file import JsonlFile, cannot_write, last_records, read_records
from ..layout import ExperimentFiles, LogFiles, RunFiles
from ..values import Object
from .metrics import metrics_record, split_timing

_BYTES_A_LINE = 1 << 13
"""Bytes that are read per requested line; with longer lines, fewer lines are returned."""


class RunLogs:
    """The files of one `logs/` folder, opened when they are first written to."""

    def __init__(self, files: LogFiles) -> None:
        self.files = files
        self._open: dict[Path, JsonlFile] = {}
        self._has_rows = False

    def add_metrics(self, files: LogFiles, step: int, metrics: Mapping[str, float], **labels: str) -> None:
        """Record the metrics of a step or a scoring as a line, and timing metrics as a line of another file."""
        results, timing = split_timing(metrics)
        if results or not timing:  # a step without metrics has a line too
            self.append(files.metrics, metrics_record(step, results, **labels))
        if timing:
            self.append(files.timing, metrics_record(step, timing, **labels))

    def add_once(self, path: Path, record: Object) -> None:
        """Record a line unless it exists, because a resumed run may report it again."""
        if record not in read_records(path):
            self.append(path, record)

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the training rows; a later call, e.g. of a later stage, appends to them."""
        path = self.files.training_data
        if self._has_rows:
            for row in rows:
                self.append(path, dict(row))
            return
        # The first call replaces the file, because a resumed run writes its rows again.
        with atomic_write(path) as out:
            out.writelines(encode_line(dict(row), f"{path}: row {number}") for number, row in enumerate(rows, 1))
        self._has_rows = True

    def append(self, path: Path, record: Object) -> None:
        """Append a line to one of the files."""
        self._file(path).append(record)

    def rewind(self, next_step: int, *, below: bool = False) -> None:
        """Drop every step from `next_step` on, because the run continues from there."""
        for path in self.files.find_below() if below else (self.files.metrics, self.files.timing):
            if path.exists():
                self._file(path).rewind(next_step)

    def drop(self, paths: Iterable[Path], unwanted: Callable[[Object], bool]) -> None:
        """Drop the `unwanted` lines, because they will be recorded again."""
        for path in paths:
            if path.exists():
                self._file(path).drop(unwanted)

    def write_page(self, path: Path, text: str | None) -> None:
        """Write a page without secrets; None removes an outdated one."""
        try:
            if text is None:
                path.unlink(missing_ok=True)
            else:
                write_text(path, redact_text(text))
        except OSError as error:
            raise cannot_write(self.files.folder, error) from error

    def write_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Write the hyperparameters of the run."""
        try:
            write_json(self.files.hyperparams, jsonable(params))
        except OSError as error:
            raise cannot_write(self.files.hyperparams, error) from error

    def close(self) -> None:
        """Close the files; a later write opens them again."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, path: Path) -> JsonlFile:
        if path not in self._open:
            self._open[path] = JsonlFile(path)
        return self._open[path]


def last_step(files: LogFiles) -> Object | None:
    """The last line of training metrics."""
    return next(iter(deque(read_records(files.metrics), maxlen=1)), None)


def last_scores(files: LogFiles) -> Iterator[Object]:
    """The last line of each benchmark."""
    for path in files.find_below(LogFiles.metrics.name):
        if path.parent != files.training:
            yield from {record["name"]: record for record in read_records(path)}.values()


def last_console(files: ExperimentFiles, lines: int) -> list[str]:
    """The last lines that an experiment in the background printed; empty for one in the foreground."""
    try:
        # Few lines have more than 400 bytes; with longer ones, fewer lines are returned.
        text = files.console.read_bytes()[-lines * 400 :].decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-lines:]


def last_metrics(run: RunFiles, lines: int) -> list[Object]:
    """The last steps of a run, oldest first."""
    return _last_lines(run.logs.metrics, lines)


def last_rollouts(run: RunFiles, split: str, lines: int) -> list[Object]:
    """The last scored answers of a split, or rollouts of `training`; oldest first."""
    logs = run.logs
    written = logs.below(split) if split == logs.training.name else logs.of_split(split)
    return _last_lines(written.rollouts, lines)


def _last_lines(path: Path, lines: int) -> list[Object]:
    return list(islice(last_records(path, lines * _BYTES_A_LINE), lines))[::-1]
