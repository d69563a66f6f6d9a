"""The rollouts of an experiment on this disk: what scorings and callbacks wrote, indexed once and read line by line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from ..record.layout import RunFiles
from ..record.values import number, subfolders, text
from .cursors import read_cursor, write_cursor
from .rollouts import Selection, detail_of, page_of, preview_of, select_rollouts
from .shapes import Rollout, RolloutDetail, Rollouts
from .source import NotFound, Object, RolloutQuery

_SPLITS = {"validation": "val", "training": "train"}
"""Folder of a `local_logger` -> split."""
_MOST_INDEXED = 500_000
"""Rollouts whose index is kept in memory; older indexes are forgotten first."""
_MOST_SELECTIONS = 4
"""Lists that are kept; the pages of one list come from one of them."""


@dataclass(frozen=True, slots=True)
class _File:
    """One file of rollouts."""

    arm: str
    path: Path
    split: str
    name: str
    step: int | None
    """None where each line says it."""


class LocalRollouts:
    """Knows where rollouts are; keeps an index of the files it has read."""

    def __init__(self) -> None:
        self._indexes: dict[Path, _Index] = {}
        self._selections: list[tuple[tuple[Any, ...], Selection]] = []
        """The lists that were asked for last, the latest first."""
        self._lock = threading.Lock()

    def list(self, folder: Path, arms: Sequence[str], query: RolloutQuery) -> Rollouts:
        """A page of the rollouts of an experiment; the pages of one list share its selection."""
        files = list(_files(folder, arms))
        key = (folder, tuple(_stamp(file.path) for file in files), replace(query, cursor="", limit=0, offset=0))
        with self._lock:
            known = next((selection for one, selection in self._selections if one == key), None)
        if known is None:
            known = select_rollouts(self._all(folder, files), query)
            with self._lock:
                self._selections = [(key, known), *self._selections[: _MOST_SELECTIONS - 1]]
        return page_of(known, query)

    def read(self, folder: Path, arms: Sequence[str], id: str) -> RolloutDetail:
        """One rollout, whole."""
        arm, name, offset = read_cursor(id, str, str, int)
        files = {(file.arm, str(file.path.relative_to(folder))): file for file in _files(folder, arms)}
        file = files.get((arm, name))
        known = [] if file is None else [rollout for at, rollout in self._index(folder, file) if at == offset]
        if file is None or not known:
            raise NotFound("rollout", id)
        with file.path.open("rb") as lines:
            lines.seek(offset)
            raw: Object = json.loads(lines.readline())
        group = [
            one.id for _, one in self._index(folder, file) if (one.task, one.step) == (known[0].task, known[0].step)
        ]
        return detail_of(known[0], raw, group)

    def _all(self, folder: Path, files: Iterable[_File]) -> Iterator[Rollout]:
        for file in files:
            for _, rollout in self._index(folder, file):
                yield rollout

    def _index(self, folder: Path, file: _File) -> list[tuple[int, Rollout]]:
        stamp = _stamp(file.path)
        if stamp is None:
            return []
        with self._lock:
            known = self._indexes.get(file.path)
        if known is None or known.stamp != stamp:
            known = _read_index(folder, file, stamp, known)
            with self._lock:
                self._indexes.pop(file.path, None)
                self._indexes[file.path] = known
                while len(self._indexes) > 1 and sum(len(one.rows) for one in self._indexes.values()) > _MOST_INDEXED:
                    self._indexes.pop(next(iter(self._indexes)))
        return list(known.rows.values())


@dataclass(frozen=True, slots=True)
class _Index:
    """What was read of a file: rollouts by what tells them apart, each with the place where it begins."""

    stamp: tuple[int, int]
    end: int = 0
    """Up to where it was read."""
    last: tuple[int, bytes] = (0, b"")
    """The last line that was read and where it begins: as long as it is there, the file has only grown."""
    rows: dict[tuple[Any, ...], tuple[int, Rollout]] = field(default_factory=dict[tuple[Any, ...], tuple[int, Rollout]])
    unnamed: dict[tuple[Any, Any], int] = field(default_factory=dict[tuple[Any, Any], int])
    """The last position among the rows of a scoring that name no task."""


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _files(folder: Path, arms: Sequence[str]) -> Iterator[_File]:
    """Journals of scorings, which are complete, and what `local_logger` wrote of sets that have none."""
    for arm in arms:
        scored: set[str] = set()
        benchmarks = folder / arm / "benchmarks"
        for place in sorted(subfolders(benchmarks)):
            split, _, name = place.partition("-")
            for path in sorted((benchmarks / place).glob("step*.jsonl")):
                digits = path.stem.removeprefix("step")
                if digits.isdecimal():
                    scored.add(split)
                    yield _File(arm, path, split, name, int(digits))
        for place in sorted(subfolders(RunFiles(folder / arm).logs.folder)):
            split, path = _SPLITS.get(place, place), RunFiles(folder / arm).logs.below(place).rollouts
            if split not in scored and path.is_file():
                yield _File(arm, path, split, "", None)


def _read_index(folder: Path, file: _File, stamp: tuple[int, int], known: _Index | None) -> _Index:
    """Where each rollout begins, and its line of the list; of one that was attempted again, the last counts.

    A file that has only grown since it was read is read on from there.
    """
    relative = str(file.path.relative_to(folder))
    try:
        with file.path.open("rb") as lines:
            before = known if known is not None and _has_only_grown(lines, known) else _Index(stamp)
            rows, unnamed, offset, last = dict(before.rows), dict(before.unnamed), before.end, before.last
            lines.seek(offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it is being written
                begin, offset, last = offset, offset + len(line), (offset, line)
                row = _parse(line)
                if row is None or "scoring" in row:
                    continue
                if "task_id" not in row:  # rows of a run's own evaluation are known by their position
                    place = (row.get("step"), row.get("name"))
                    row["task_id"] = unnamed[place] = unnamed.get(place, -1) + 1
                rollout = _rollout(file, row, write_cursor(file.arm, relative, begin))
                key = (rollout.name, rollout.step, rollout.task, rollout.sample)
                rows.pop(key, None)
                rows[key] = (begin, rollout)
    except OSError:
        return _Index(stamp)
    return _Index(stamp, offset, last, rows, unnamed)


def _has_only_grown(lines: IO[bytes], known: _Index) -> bool:
    begin, line = known.last
    lines.seek(begin)
    return bool(line) and lines.read(len(line)) == line


def _parse(line: bytes) -> Object | None:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _rollout(file: _File, row: Object, id: str) -> Rollout:
    step = file.step if file.step is not None else int(number(row.get("step")) or 0)
    tokens, turns = number(row.get("tokens")), number(row.get("turns"))
    return Rollout(
        id=id,
        arm=file.arm,
        split=file.split,
        name=file.name or text(row.get("name")),
        step=step,
        task=str(row.get("task_id", "")),
        sample=int(number(row.get("sample")) or 0),
        status=text(row.get("status")),
        reward=number(row.get("reward")),
        tokens=None if tokens is None else int(tokens),
        turns=None if turns is None else int(turns),
        preview=preview_of(row),
    )
