"""An incremental index of the rollouts of an experiment on this disk, written by scorings and callbacks."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from ...history.views.answers import load_tasks, task_texts
from ...record.layout import ExperimentFiles, RunFiles
from ...record.values import number, read_object, stamp_of, subfolders, text, whole
from ..views.rollouts import COLUMNS, LONGEST_PREVIEW, ORDER, text_of
from ..views.source import NotFound, Object, read_cursor, write_cursor

_SPLITS = {"validation": "val", "training": "train"}
"""Folder of a `local_logger` -> split."""
_MANY_ARMS = 100
_MOST_OF_THE_TIME = 10
"""With many arms, at most one part in this many of the time is spent on finding files."""
_MOST_RESULTS = 16
_KEY = ("arm", "file", "place")
_TABLE = f"""
CREATE TABLE rollout ({", ".join(COLUMNS)}, text, file, place, PRIMARY KEY (file, name, step, task, sample));
CREATE INDEX ordered ON rollout ({ORDER});
CREATE INDEX tasks ON rollout (task);
"""
_INSERT = f"INSERT OR REPLACE INTO rollout VALUES ({','.join('?' * (len(COLUMNS) + 3))})"


@dataclass(frozen=True, slots=True)
class _File:
    """One file of rollouts."""

    arm: str
    path: Path
    split: str
    name: str
    step: int | None
    """None if each line has its own step."""


@dataclass(slots=True)
class _Position:
    """The read position in a file."""

    stamp: tuple[int, int] = (0, 0)
    end: int = 0
    last: tuple[int, bytes] = (0, b"")
    """Start and content of the last line that was read; if it is unchanged, the file has only grown."""
    unnamed: dict[tuple[Any, Any], int] = field(default_factory=dict[tuple[Any, Any], int])
    """Number of the last row without a task, by step and name of the scoring."""


class RolloutIndex:
    """A `RolloutTable` over files, in a temporary database."""

    key: Sequence[str] = _KEY

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.RLock()
        self._db = sqlite3.connect("", check_same_thread=False)  # a temporary database, on disk if it is large
        self._db.executescript(_TABLE)
        self._positions: dict[Path, _Position] = {}
        self._files: list[_File] = []
        self._until = 0.0
        self._results: dict[tuple[Any, ...], list[Any]] = {}
        """Query results since the last change of a file, because the pages of a list repeat queries."""

    def __del__(self) -> None:
        self._db.close()

    def refresh(self, arms: Sequence[str]) -> None:
        """Read the lines that were written since the last call."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._files = list(_files(self._folder, arms))
                now = time.monotonic()
                self._until = now + (now - began) * _MOST_OF_THE_TIME if len(arms) > _MANY_ARMS else 0.0
            gone = self._positions.keys() - {file.path for file in self._files}
            changed = [
                file for file in self._files if stamp_of(file.path) != self._positions.get(file.path, _Position()).stamp
            ]
            if not gone and not changed:
                return
            self._results.clear()
            for path in gone:
                self._forget(path)
            for file in changed:
                self._read_new_lines(file)
            self._db.commit()

    def read(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> Sequence[Sequence[Any]]:
        where = f"WHERE {condition}" if condition else ""
        sql = f"SELECT {', '.join(columns)} FROM rollout {where} {tail}"
        with self._lock:
            rows = self._results.get((sql, *values))
            if rows is None:
                rows = self._db.execute(sql, values).fetchall()
                if len(self._results) >= _MOST_RESULTS:
                    self._results.pop(next(iter(self._results)))
                self._results[sql, *values] = rows
            return rows

    def search(self, words: str) -> tuple[str, str]:
        return "instr(text, ?) > 0", words.casefold()

    def write_id(self, key: Sequence[Any]) -> str:
        return write_cursor(*key)

    def read_id(self, id: str) -> Sequence[Any]:
        return read_cursor(id, str, str, int)

    def body(self, key: Sequence[Any]) -> Object:
        _, file, begin = key
        try:
            with (self._folder / file).open("rb") as lines:  # checked: the path comes from the index
                lines.seek(begin)
                line = lines.readline()
            raw: Object = json.loads(line)
            if b"\\ud" in line.lower():  # may be an unpaired surrogate, which UTF-8 cannot encode
                raw = json.loads(json.dumps(raw, ensure_ascii=False).encode(errors="replace"))
        except (OSError, ValueError):
            raise NotFound("rollout", self.write_id(key)) from None
        [(split, name)] = self.read(("split", "name"), "file = ? AND place = ?", (file, begin)) or [("", "")]
        if raw.get("task") and (task := read_tasks(self._folder, split, name).get(text(raw["task"]))):
            raw |= task_texts(task)
        return raw

    def _forget(self, path: Path) -> None:
        self._positions.pop(path, None)
        self._db.execute("DELETE FROM rollout WHERE file = ?", (str(path.relative_to(self._folder)),))

    def _read_new_lines(self, file: _File) -> None:
        """Add the new lines of a file; read it from the start if it was rewritten."""
        stamp = stamp_of(file.path)
        try:
            with file.path.open("rb") as lines:
                position = self._positions.get(file.path)
                if position is None or not _has_only_grown(lines, position):
                    self._forget(file.path)
                    position = _Position()
                position.stamp = stamp or (0, 0)
                self._positions[file.path] = position
                lines.seek(position.end)
                relative = str(file.path.relative_to(self._folder))
                self._db.executemany(_INSERT, _rows(file, relative, lines, position))
        except OSError:
            self._forget(file.path)


@lru_cache(maxsize=8)
def read_tasks(folder: Path, split: str, name: str) -> dict[str, Any]:
    """The tasks of a benchmark by the hash of their content."""
    return load_tasks(read_object(ExperimentFiles(folder).config) or {}, split, name)[0]


def _rows(file: _File, relative: str, lines: IO[bytes], position: _Position) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the lines after the read position; the caller replaces earlier rows with the same key."""
    decode = _decoder()
    for line in lines:
        if not line.endswith(b"\n"):
            return  # incomplete line
        begin, position.end, position.last = position.end, position.end + len(line), (position.end, line)
        row = _parse(line, decode)
        if row is None or "scoring" in row:
            continue
        if "task_id" not in row:  # rows of a run's own evaluation are numbered by position
            place = (row.get("step"), row.get("name"))
            row["task_id"] = position.unnamed[place] = position.unnamed.get(place, -1) + 1
        get, answer, task = row.get, _storable(text_of(row)), _storable(str(row["task_id"]))
        yield (
            file.arm,
            file.split,
            file.name or _storable(text(get("name"))),
            (_count(get("step")) or 0) if file.step is None else file.step,
            task,
            _count(get("sample")) or 0,
            _storable(text(get("status"))),
            number(get("reward")),
            _count(get("tokens")),
            _count(get("turns")),
            answer[:LONGEST_PREVIEW],
            f"{task} {answer}".casefold(),
            relative,
            begin,
        )


def _count(value: Any) -> int | None:
    count = whole(value)
    return None if count is None or abs(count) > 1 << 53 else count


def _storable(value: str) -> str:
    """Escape unpaired surrogates, which JSON allows and SQLite rejects."""
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()


def _files(folder: Path, arms: Sequence[str]) -> Iterator[_File]:
    """Yield the journals of scorings, and the files of `local_logger` for splits without a journal."""
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


def _has_only_grown(lines: IO[bytes], position: _Position) -> bool:
    # Size and time are not sufficient: a rewritten file may be longer too.
    begin, line = position.last
    lines.seek(begin)
    return bool(line) and lines.read(len(line)) == line


def _decoder() -> Callable[[bytes], Any]:
    """The JSON decoder: msgspec, which is 8 times as fast, or `json` if it is not installed."""
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
            row = json.loads(line)  # accepts NaN, which Python writes
        except (ValueError, RecursionError):
            return None
    except RecursionError:
        return None
    return cast(Object, row) if isinstance(row, dict) else None
