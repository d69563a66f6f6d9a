"""The index of all experiments below some roots; unchanged ones are read from the cache.

A folder is read again when size or time of its journal or its conclusion changed. Its config is not checked, because it
never changes after the folder has its name. A folder without a journal is read again when a file in it, or in the
folder of an arm, was added or replaced. `HistoryIndex` refreshes itself when it is opened.

    with HistoryIndex(experiment_roots()) as index:
        for view in select(index, Filters(tags=("routing",)), limit=20): ...        # query.py
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..record.layout import ExperimentFiles
from ..record.values import UNFINISHED, subfolders
from ..record.view.model import LIVE, ExperimentView
from .cache import FRESHNESS, SEARCHED, NewRow, Row, ViewCache, make_row

_FOREIGN = "foreign"
"""Status of a folder that is no experiment; cached, so that it is not read each time."""
_JOURNAL, _CONCLUSION, _LOCK = (
    place.name for place in (ExperimentFiles.journal, ExperimentFiles.conclusion, ExperimentFiles.lock)
)
_BATCH = 500


class HistoryIndex:
    """The experiments below some roots, as a `ViewTable` of `query.py`."""

    text = SEARCHED

    def __init__(self, roots: Sequence[Path], *, refresh: bool = True) -> None:
        """Open the caches; without `refresh` they may be outdated."""
        self.roots = list(roots)
        self._caches: list[tuple[Path, ViewCache]] = []
        for root in self.roots:
            cache = ViewCache(root)
            self._caches.append((root, cache))
            if not refresh:
                continue
            try:
                _refresh(root, cache)
            except sqlite3.DatabaseError as error:
                cache.reset(error)
                _refresh(root, cache)

    def rows(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[Row]:
        """Columns of the experiments of all roots that meet an SQL condition; `tail` orders, groups and limits."""
        return [row for _, rows in self.rows_by_root(columns, condition, values, tail) for row in rows]

    def rows_by_root(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[tuple[Path, list[Row]]]:
        """Columns of the experiments that meet an SQL condition, by root."""
        where = f"{_where(condition)} {tail}"
        return [(root, cache.read(columns, where, values)) for root, cache in self._caches]

    def rows_of(
        self, table: str, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[Row]:
        """Columns of `runs` or `effects` of all roots."""
        where = f"{f'WHERE {condition}' if condition else ''} {tail}"
        return [row for _, cache in self._caches for row in cache.read(columns, where, values, table)]

    def views(self, condition: str = "", values: Sequence[Any] = (), tail: str = "") -> list[ExperimentView]:
        """The views of the experiments that meet an SQL condition; `tail` orders and limits those of each root."""

        def read(root: Path, cache: ViewCache) -> list[ExperimentView]:
            rows = cache.read(("folder",), f"{_where(condition)} {tail}", values)
            return [_restore(root, cache, folder) for (folder,) in rows]

        return [view for place in self._caches for view in _read_or_rebuild(*place, read)]

    def load(self, places: Sequence[tuple[str, int]]) -> list[ExperimentView]:
        """The views of folders, given as (folder, number of its root)."""

        return [
            _read_or_rebuild(*self._caches[number], lambda root, cache, folder=folder: _restore(root, cache, folder))
            for folder, number in places
        ]

    @property
    def is_on_disk(self) -> bool:
        """Whether the caches are on disk; False if the disk cannot be written."""
        return all(cache.is_on_disk for _, cache in self._caches)

    def close(self) -> None:
        for _, cache in self._caches:
            cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _where(condition: str) -> str:
    return f"WHERE status != '{_FOREIGN}'" + (f" AND ({condition})" if condition else "")


def _refresh(root: Path, cache: ViewCache) -> None:
    """Update the cache of a root."""
    cached = {row[0]: row[1:] for row in cache.read(FRESHNESS)}
    names = _folder_names(root)
    changed: list[tuple[str, str]] = []
    unfinished: list[tuple[str, str, str]] = []
    for name in names:
        row = cached.pop(name, None)
        stamp = fingerprint(f"{root}/{name}")  # before reading, so that the next refresh sees a change meanwhile
        if row is None or row[0] != stamp:
            changed.append((stamp, name))
        elif row[1]:
            unfinished.append((stamp, name, row[2]))
    if len(changed) > _BATCH:  # newest first, for readers that wait
        changed.sort(reverse=True)  # the fingerprint begins with the time of the journal
    if changed or cached:
        # At least once, because rows of removed folders must go.
        for begin in range(0, max(len(changed), 1), _BATCH):
            cache.write(_make_rows(root, changed[begin : begin + _BATCH]), cached)
    # A running experiment spends without events in its journal.
    outdated = [
        (stamp, name)
        for stamp, name, status in unfinished
        if (running := _is_running(root / name)) or running != (status in LIVE)
    ]
    if outdated:
        cache.write(_make_rows(root, outdated))
    cache.add_indexes()


def fingerprint(folder: str) -> str:
    """Changes when the view of a folder may have changed."""
    try:  # text paths, which are faster than `Path`: this runs for every experiment
        journal = os.stat(f"{folder}/{_JOURNAL}")
    except (OSError, ValueError):
        return _without_journal(folder)
    try:
        conclusion = os.stat(f"{folder}/{_CONCLUSION}")
    except (OSError, ValueError):
        return f"{journal.st_mtime_ns} {journal.st_size}"
    return f"{journal.st_mtime_ns} {journal.st_size} {conclusion.st_mtime_ns} {conclusion.st_size}"


def _without_journal(folder: str) -> str:
    """The fingerprint of a folder without a journal: the times of its entries."""
    try:
        with os.scandir(folder) as entries:
            stamps = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name != _LOCK)
    except (OSError, ValueError):
        return "unreadable"
    return json.dumps(stamps)


def _folder_names(root: Path) -> list[str]:
    names = subfolders(root)
    unusable = [name for name in names if not name.isprintable()]
    for name in unusable:
        from ..log import get_logger

        get_logger(__name__).warning("%s: the folder %a is skipped: rename it to a printable name", root, name)
    return [name for name in names if name not in unusable] if unusable else names


def _make_rows(root: Path, changed: Sequence[tuple[str, str]]) -> Iterator[NewRow]:
    """The new rows of folders, given as (fingerprint, name)."""
    from ..record.reader import ExperimentRecord
    from ..record.view.build import view
    from .effects import contrasts_of

    for stamp, name in changed:
        record = ExperimentRecord(root / name)
        if not record.is_experiment:
            yield make_row(name, stamp, _FOREIGN)
            continue
        built = view(record)
        unfinished = record.ending == UNFINISHED and built.status != "damaged"
        yield make_row(name, stamp, built.status, built, contrasts_of(record, built), unfinished=int(unfinished))


def _is_running(folder: Path) -> bool:
    from ..record.reader import ExperimentRecord

    return ExperimentRecord(folder).is_running


def _restore(root: Path, cache: ViewCache, folder: str) -> ExperimentView:
    # With a new path, because the root may have been moved.
    return ExperimentView.from_json(cache.view_of(folder), path=f"{root}{os.sep}{folder}")


def _read_or_rebuild[T](root: Path, cache: ViewCache, read: Callable[[Path, ViewCache], T]) -> T:
    """Read from a cache, and rebuild it if it is damaged."""
    try:
        return read(root, cache)
    except (ValueError, TypeError, KeyError, sqlite3.DatabaseError) as error:
        cache.reset(error)
        _refresh(root, cache)
        return read(root, cache)
