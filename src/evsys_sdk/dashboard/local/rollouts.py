"""The rollouts of an experiment on this disk: what scorings and callbacks wrote, indexed once and read line by line."""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

from ...history.views.answers import task_texts
from ...record.layout import RunFiles
from ...record.values import number, subfolders, text
from ..shapes.record import RolloutDetail, Rollouts
from ..views.rollouts import Everything, Line, Selection, detail_of, page_of, preview_of, select_rollouts
from ..views.source import NotFound, Object, RolloutQuery, read_cursor

_SPLITS = {"validation": "val", "training": "train"}
"""Folder of a `local_logger` -> split."""
_MOST_INDEXED = 500_000
"""Rollouts whose index is kept in memory; older indexes are forgotten first."""
_MOST_KEPT = 4
"""Lists that are kept; the pages of one list come from one of them."""
_MANY_ARMS = 100
_MOST_OF_THE_TIME = 10
"""Where an experiment has many arms, its files are looked for in at most one part in so many of the time."""


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
        self._listed: dict[Path, tuple[float, list[_File]]] = {}
        """The files of experiments with many arms, and until when that is taken for true."""
        self._everything: list[tuple[tuple[Any, ...], Everything]] = []
        self._selections: list[tuple[tuple[Any, ...], Selection]] = []
        """What was asked for last, the latest first."""
        self._lock = threading.Lock()

    def list(self, folder: Path, arms: Sequence[str], query: RolloutQuery) -> Rollouts:
        """A page of the rollouts of an experiment; the pages of one list share its selection."""
        files = self._files(folder, arms)
        state = (folder, tuple(_stamp(file.path) for file in files))
        asked = (state, replace(query, cursor="", limit=0, offset=0))

        def read_everything() -> Everything:
            return Everything(line for file in files for line in self._index(folder, file).lines)

        def select() -> Selection:
            everything = self._remember(self._everything, state, read_everything)
            among = None
            if query.task:
                found = [line for file in files for line in self._index(folder, file).by_task.get(query.task, ())]
                among = sorted(found, key=lambda line: line.place)
            return select_rollouts(everything, query, among)

        return page_of(self._remember(self._selections, asked, select), query)

    def read(
        self, folder: Path, arms: Sequence[str], id: str, tasks: Callable[[tuple[str, str]], Mapping[str, Any]]
    ) -> RolloutDetail:
        """One rollout, whole; `tasks` reads those of a benchmark, by the hash of their content."""
        arm, name, begin = read_cursor(id, str, str, int)
        files = _files(folder, [arm]) if arm in arms else ()  # who asks does not say where we look
        file = next((file for file in files if str(file.path.relative_to(folder)) == name), None)
        index = _Index((0, 0)) if file is None else self._index(folder, file)
        at = bisect_left(index.lines, begin, key=lambda line: line.begin)
        if file is None or at == len(index.lines) or index.lines[at].begin != begin:
            raise NotFound("rollout", id)
        line = index.lines[at]
        with file.path.open("rb") as lines:
            lines.seek(begin)
            raw: Object = json.loads(lines.readline())
        if raw.get("task") and (task := tasks((line.split, line.name)).get(text(raw["task"]))):
            raw |= task_texts(task)
        return detail_of(line.show(), raw, [one.id for one in index.by_task[line.task] if one.step == line.step])

    def _remember[T](self, kept: list[tuple[tuple[Any, ...], T]], key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What was made for a key, or what is made for it now; the few latest are kept."""
        with self._lock:
            known = next((value for one, value in kept if one == key), None)
        if known is None:
            known = make()  # without the lock, because it takes long; made twice it is the same
            with self._lock:
                kept[:] = [(key, known), *kept[: _MOST_KEPT - 1]]
        return known

    def _files(self, folder: Path, arms: Sequence[str]) -> list[_File]:
        """The files of rollouts; of an experiment with many arms, as they were a moment ago."""
        began = time.monotonic()
        with self._lock:
            until, files = self._listed.get(folder, (0.0, list[_File]()))
        if began < until:
            return files
        files = list(_files(folder, arms))
        if len(arms) > _MANY_ARMS:
            now = time.monotonic()
            with self._lock:
                self._listed[folder] = (now + (now - began) * _MOST_OF_THE_TIME, files)
        return files

    def _index(self, folder: Path, file: _File) -> _Index:
        stamp = _stamp(file.path)
        if stamp is None:
            return _Index((0, 0))
        with self._lock:
            known = self._indexes.get(file.path)
        if known is None or known.stamp != stamp:
            known = _read_index(folder, file, stamp, known)
            with self._lock:
                self._indexes.pop(file.path, None)
                self._indexes[file.path] = known
                while len(self._indexes) > 1 and sum(len(one.lines) for one in self._indexes.values()) > _MOST_INDEXED:
                    self._indexes.pop(next(iter(self._indexes)))
        return known


@dataclass(frozen=True, slots=True)
class _Index:
    """What was read of a file: its rollouts by what tells them apart, in the order of their places in it."""

    stamp: tuple[int, int]
    end: int = 0
    """Up to where it was read."""
    last: tuple[int, bytes] = (0, b"")
    """The last line that was read and where it begins: as long as it is there, the file has only grown."""
    rows: dict[tuple[Any, ...], Line] = field(default_factory=dict[tuple[Any, ...], Line])
    unnamed: dict[tuple[Any, Any], int] = field(default_factory=dict[tuple[Any, Any], int])
    """The last position among the rows of a scoring that name no task."""
    lines: list[Line] = field(default_factory=list[Line])
    by_task: dict[str, list[Line]] = field(default_factory=dict[str, list[Line]])


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
            same = {"val", "eval"} if split == "val" else {split}  # both are logged as validation
            if not same & scored and path.is_file():
                yield _File(arm, path, split, "", None)


def _read_index(folder: Path, file: _File, stamp: tuple[int, int], known: _Index | None) -> _Index:
    """Where each rollout begins, and its line of the list; of one that was attempted again, the last counts.

    A file that has only grown since it was read is read on from there.
    """
    relative, decode = str(file.path.relative_to(folder)), _decoder()
    try:
        with file.path.open("rb") as lines:
            before = known if known is not None and _has_only_grown(lines, known) else _Index(stamp)
            # Copied, because who asked before may still be reading the index as it was.
            rows, unnamed, offset, last = dict(before.rows), dict(before.unnamed), before.end, before.last
            lines.seek(offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it is being written
                begin, offset, last = offset, offset + len(line), (offset, line)
                row = _parse(line, decode)
                if row is None or "scoring" in row:
                    continue
                if "task_id" not in row:  # rows of a run's own evaluation are known by their position
                    place = (row.get("step"), row.get("name"))
                    row["task_id"] = unnamed[place] = unnamed.get(place, -1) + 1
                shown = _line(file, row, relative, begin)
                rows.pop(shown[2:6], None)  # a later attempt stands at its own place in the file
                rows[shown[2:6]] = shown  # name, step, task and sample
    except OSError:
        return _Index(stamp)
    by_task: dict[str, list[Line]] = {}
    for shown in rows.values():
        by_task.setdefault(shown.task, []).append(shown)
    return _Index(stamp, offset, last, rows, unnamed, list(rows.values()), by_task)


def _has_only_grown(lines: IO[bytes], known: _Index) -> bool:
    # Its size and time cannot tell: a file that was written anew may be longer, too.
    begin, line = known.last
    lines.seek(begin)
    return bool(line) and lines.read(len(line)) == line


def _decoder() -> Callable[[bytes], Any]:
    """msgspec takes an eighth of the time; it comes with the server and is not needed to export."""
    try:
        from msgspec.json import Decoder
    except ImportError:
        return json.loads
    return Decoder[Any]().decode


def _parse(line: bytes, decode: Callable[[bytes], Any]) -> Object | None:
    try:
        row: Any = decode(line)
    except ValueError:
        try:
            row = json.loads(line)  # also reads NaN, which is no JSON and which Python writes
        except (ValueError, RecursionError):
            return None
    except RecursionError:
        return None
    return cast(Object, row) if isinstance(row, dict) else None


def _line(file: _File, row: Object, relative: str, begin: int) -> Line:
    get = row.get
    return Line(
        file.arm,
        file.split,
        file.name or text(get("name")),
        (_whole(get("step")) or 0) if file.step is None else file.step,
        str(get("task_id", "")),
        _whole(get("sample")) or 0,
        text(get("status")),
        number(get("reward")),
        _whole(get("tokens")),
        _whole(get("turns")),
        preview_of(row),
        relative,
        begin,
    )


def _whole(value: Any) -> int | None:
    """A number without what follows its point."""
    if value is None or type(value) is int:  # nearly all are, and there are many
        return value
    found = number(value)
    return None if found is None else int(found)
