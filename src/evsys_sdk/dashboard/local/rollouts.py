"""The rollouts of an experiment on this disk: what scorings and callbacks wrote, indexed as it grows."""

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
"""Where an experiment has many arms, its files are looked for in at most one part in so many of the time."""
_ANSWERS = 16
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
    """None where each line says it."""


@dataclass(slots=True)
class _Seen:
    """How far a file was read."""

    stamp: tuple[int, int] = (0, 0)
    end: int = 0
    last: tuple[int, bytes] = (0, b"")
    """The last line that was read and where it begins: as long as it is there, the file has only grown."""
    unnamed: dict[tuple[Any, Any], int] = field(default_factory=dict[tuple[Any, Any], int])
    """The last position among the rows of a scoring that name no task."""


class RolloutIndex:
    """A `RolloutTable` over files, in a temporary database."""

    key: Sequence[str] = _KEY

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.RLock()
        self._db = sqlite3.connect("", check_same_thread=False)  # on the disk where it is large, and gone with us
        self._db.executescript(_TABLE)
        self._seen: dict[Path, _Seen] = {}
        self._files: list[_File] = []
        self._until = 0.0
        self._answers: dict[tuple[Any, ...], list[Any]] = {}
        """What was asked since a file has changed: the pages of one list ask the same."""

    def __del__(self) -> None:
        self._db.close()

    def refresh(self, arms: Sequence[str]) -> None:
        """Read what was written since the last look."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._files = list(_files(self._folder, arms))
                now = time.monotonic()
                self._until = now + (now - began) * _MOST_OF_THE_TIME if len(arms) > _MANY_ARMS else 0.0
            gone = self._seen.keys() - {file.path for file in self._files}
            changed = [file for file in self._files if stamp_of(file.path) != self._seen.get(file.path, _Seen()).stamp]
            if not gone and not changed:
                return
            self._answers.clear()
            for path in gone:
                self._forget(path)
            for file in changed:
                self._read_on(file)
            self._db.commit()

    def read(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> Sequence[Sequence[Any]]:
        where = f"WHERE {condition}" if condition else ""
        sql = f"SELECT {', '.join(columns)} FROM rollout {where} {tail}"
        with self._lock:
            known = self._answers.get((sql, *values))
            if known is None:
                known = self._db.execute(sql, values).fetchall()
                if len(self._answers) >= _ANSWERS:
                    self._answers.pop(next(iter(self._answers)))
                self._answers[sql, *values] = known
            return known

    def search(self, words: str) -> tuple[str, str]:
        return "instr(text, ?) > 0", words.casefold()

    def write_id(self, key: Sequence[Any]) -> str:
        return write_cursor(*key)

    def read_id(self, id: str) -> Sequence[Any]:
        return read_cursor(id, str, str, int)

    def body(self, key: Sequence[Any]) -> Object:
        _, file, begin = key
        try:
            with (self._folder / file).open("rb") as lines:  # one that `read` has found, so a file of ours
                lines.seek(begin)
                line = lines.readline()
            raw: Object = json.loads(line)
            if b"\\ud" in line.lower():  # perhaps half of a surrogate pair, which cannot be sent
                raw = json.loads(json.dumps(raw, ensure_ascii=False).encode(errors="replace"))
        except (OSError, ValueError):
            raise NotFound("rollout", self.write_id(key)) from None
        [(split, name)] = self.read(("split", "name"), "file = ? AND place = ?", (file, begin)) or [("", "")]
        if raw.get("task") and (task := read_tasks(self._folder, split, name).get(text(raw["task"]))):
            raw |= task_texts(task)
        return raw

    def _forget(self, path: Path) -> None:
        self._seen.pop(path, None)
        self._db.execute("DELETE FROM rollout WHERE file = ?", (str(path.relative_to(self._folder)),))

    def _read_on(self, file: _File) -> None:
        """Add the lines of a file that were written since the last look; one that was written anew is read anew."""
        stamp = stamp_of(file.path)
        try:
            with file.path.open("rb") as lines:
                seen = self._seen.get(file.path)
                if seen is None or not _has_only_grown(lines, seen):
                    self._forget(file.path)
                    seen = _Seen()
                seen.stamp = stamp or (0, 0)
                self._seen[file.path] = seen
                lines.seek(seen.end)
                relative = str(file.path.relative_to(self._folder))
                self._db.executemany(_INSERT, _rows(file, relative, lines, seen))
        except OSError:
            self._forget(file.path)


@lru_cache(maxsize=8)
def read_tasks(folder: Path, split: str, name: str) -> dict[str, Any]:
    """The tasks of a benchmark by the hash of their content."""
    return load_tasks(read_object(ExperimentFiles(folder).config) or {}, split, name)[0]


def _rows(file: _File, relative: str, lines: IO[bytes], seen: _Seen) -> Iterator[tuple[Any, ...]]:
    """The rollouts from a place in a file on; of one that was attempted again, the last counts."""
    decode = _decoder()
    for line in lines:
        if not line.endswith(b"\n"):
            return  # it is being written
        begin, seen.end, seen.last = seen.end, seen.end + len(line), (seen.end, line)
        row = _parse(line, decode)
        if row is None or "scoring" in row:
            continue
        if "task_id" not in row:  # rows of a run's own evaluation are known by their position
            place = (row.get("step"), row.get("name"))
            row["task_id"] = seen.unnamed[place] = seen.unnamed.get(place, -1) + 1
        get, said, task = row.get, _storable(text_of(row)), _storable(str(row["task_id"]))
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
            said[:LONGEST_PREVIEW],
            f"{task} {said}".casefold(),
            relative,
            begin,
        )


def _count(value: Any) -> int | None:
    found = whole(value)
    return None if found is None or abs(found) > 1 << 53 else found


def _storable(value: str) -> str:
    """Half of a surrogate pair is legal JSON and no text that SQLite takes."""
    return value if value.isascii() else value.encode(errors="backslashreplace").decode()


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


def _has_only_grown(lines: IO[bytes], seen: _Seen) -> bool:
    # Its size and time cannot tell: a file that was written anew may be longer, too.
    begin, line = seen.last
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
