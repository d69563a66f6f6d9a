"""Writing rows into a file of the workspace, and reading them back before they count."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import DataError, WorkspaceError
from ..protocols import Row
from ..record.jsonable import dump_line
from .jsonl import numbered_rows
from .reference import Kind
from .rows import detect_format, parse_rows
from .types import TargetFormat

_ROW_PREFIX = "task: row 1: "


def write_lines(file: IO[bytes], rows: Iterable[bytes | Row], where: str) -> str:
    """Write rows, lines as they are and objects as JSON; returns the sha256 of what was written."""
    digest = hashlib.sha256()
    for number, row in enumerate(_shielded(rows), 1):
        line = row if isinstance(row, bytes) else dump_line(row, f"{where}:{number}")
        file.write(line)
        digest.update(line)
    file.flush()
    return digest.hexdigest()


def check_rows(path: Path, kind: Kind, where: str) -> Counter[str]:
    """How many rows of which format a file holds; a row that cannot be used is refused with its line in `where`."""
    formats: Counter[str] = Counter()
    task_lines: dict[str, int] = {}
    try:
        for number, row in numbered_rows(path):
            if kind == "benchmark":
                _check_task(row, number, task_lines, f"{path}:{number}")
            formats[detect_format(row)] += 1
    except DataError as error:  # the reader knows the file by its temporary path
        raise DataError(str(error).replace(str(path), where, 1)) from None
    if not formats:
        raise DataError(f"{where}: there are no rows. Check the file, or the transforms that make them.")
    return formats


def _check_task(row: Row, number: int, task_lines: dict[str, int], place: str) -> None:
    """A benchmark that could not be scored is refused now, not after a training run."""
    try:
        task = next(parse_rows([row], TargetFormat.HARBOR_TASK, source="task"))
    except DataError as error:
        raise DataError(f"{place}: {str(error).removeprefix(_ROW_PREFIX)}") from None
    before = task_lines.setdefault(task.task_id, number)
    if before != number:
        raise DataError(
            f"{place}: task_id '{task.task_id}' already stands in line {before}. Task ids must differ, because the "
            "scores of two models on one task are matched by it. Rename one, or drop the row."
        )


def make_read_only(file: IO[Any]) -> None:
    """Take the write permission off an open file."""
    path = Path(file.name)
    path.chmod(path.stat().st_mode & ~0o222)


@contextlib.contextmanager
def explained_failures(folder: Path) -> Generator[None]:
    """Turn failures to write below `folder` into a message with a remedy."""
    try:
        yield
    except _RowsFailed as failed:
        raise (failed.__cause__ or failed) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "Free some space, or raise the limit," if full else "Make the folder writable"
        raise WorkspaceError(
            f"{folder}: rows could not be written there: {error.strerror or error}. Nothing half-written was kept. "
            f"{remedy} and run again."
        ) from error


class _RowsFailed(Exception):
    """Carries an operating-system error of whoever makes the rows past the handler for those of writing them."""


def _shielded(rows: Iterable[bytes | Row]) -> Iterator[bytes | Row]:
    try:
        yield from rows
    except OSError as error:
        raise _RowsFailed from error
