"""All experiments of all roots, fast, and which of them to show: filters, free-text search, order.

What did not change since the last look is taken from the cache.

A folder is read again when size or time of its journal or its conclusion changed. Its config is not looked at: it is
written before the folder gets its name and never after, and asking for it would take a tenth of the time there is. A
folder without a journal is read again when anything in it, or in the folder of one of its arms, was added or replaced.
`HistoryIndex` brings itself up to date when it is opened.

    with HistoryIndex(experiment_roots()) as index:
        for view in select(index, Filters(tags=("routing",)), limit=20): ...
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import DataError, closest, show
from ..record.layout import ExperimentFiles
from ..record.values import UNFINISHED, subfolders
from ..record.view.model import LIVE, STATUSES, VERDICTS, ExperimentView
from .cache import FRESHNESS, SEARCHED, NewRow, Row, ViewCache, make_row

_FOREIGN = "foreign"
"""Status of a folder that is no experiment; remembered, so that it is not read each time."""
_JOURNAL, _CONCLUSION, _LOCK = (
    place.name for place in (ExperimentFiles.journal, ExperimentFiles.conclusion, ExperimentFiles.lock)
)
_BATCH = 500
NO_VERDICT = "none"
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


class HistoryIndex:
    """The experiments below some roots."""

    def __init__(self, roots: Sequence[Path], *, refresh: bool = True) -> None:
        """Without `refresh` it is what the last look left on the disk, which may still go on elsewhere."""
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
                cache.start_again(error)
                _refresh(root, cache)

    def rows(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[Row]:
        """Columns of the experiments of all roots that meet an SQL condition; `tail` orders, groups and limits."""
        return [row for _, rows in self.rows_by_root(columns, condition, values, tail) for row in rows]

    def rows_by_root(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[tuple[Path, list[Row]]]:
        """The same, with the root that each row's `folder` is below."""
        where = f"{_where(condition)} {tail}"
        return [(root, cache.read(columns, where, values)) for root, cache in self._caches]

    def rows_of(
        self, table: str, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> list[Row]:
        """Columns of `runs` or `effects` of all roots."""
        where = f"{f'WHERE {condition}' if condition else ''} {tail}"
        return [row for _, cache in self._caches for row in cache.read(columns, where, values, table)]

    def views(self, condition: str = "", values: Sequence[Any] = (), tail: str = "") -> list[ExperimentView]:
        """The views of the experiments that meet an SQL condition; `tail` orders and limits each root's."""
        found: list[ExperimentView] = []
        for root, cache in self._caches:
            try:
                found += _restore(root, cache, f"{_where(condition)} {tail}", values)
            except (ValueError, TypeError, KeyError, sqlite3.DatabaseError) as error:  # somebody else wrote to it
                cache.start_again(error)
                _refresh(root, cache)
                found += _restore(root, cache, f"{_where(condition)} {tail}", values)
        return found

    @property
    def is_kept(self) -> bool:
        """Whether what a look finds is there for the next one; not where the disk cannot be written."""
        return all(cache.is_kept for _, cache in self._caches)

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
    """Bring the cache of a root up to date."""
    known = {row[0]: row[1:] for row in cache.read(FRESHNESS)}
    names = _folder_names(root)
    changed: list[tuple[str, str]] = []
    unfinished: list[tuple[str, str, str]] = []
    for name in names:
        row = known.pop(name, None)
        seen = fingerprint(f"{root}/{name}")  # taken first: a change while we read is then seen by the next look
        if row is None or row[0] != seen:
            changed.append((seen, name))
        elif row[1]:
            unfinished.append((seen, name, row[2]))
    if len(changed) > _BATCH:  # somebody may be watching: what is new comes first
        changed.sort(reverse=True)  # it begins with the time of the journal
    if changed or known:
        # At least once: where nothing has changed, there may be rows to remove.
        for begin in range(0, max(len(changed), 1), _BATCH):
            cache.write([_new_row(root, *one) for one in changed[begin : begin + _BATCH]], known)
    # What is running spends while its journal is silent.
    turned = [
        (seen, name)
        for seen, name, status in unfinished
        if (running := _is_running(root / name)) or running != (status in LIVE)
    ]
    if turned:
        cache.write([_new_row(root, *one) for one in turned])
    cache.settle()


def fingerprint(folder: str) -> str:
    """Changes when what the view is made of may have changed."""
    try:  # by paths as text, which are made faster than a `Path`: every experiment is asked at every look
        journal = os.stat(f"{folder}/{_JOURNAL}")
    except (OSError, ValueError):
        return _without_journal(folder)
    try:
        conclusion = os.stat(f"{folder}/{_CONCLUSION}")
    except (OSError, ValueError):
        return f"{journal.st_mtime_ns} {journal.st_size}"
    return f"{journal.st_mtime_ns} {journal.st_size} {conclusion.st_mtime_ns} {conclusion.st_size}"


def _without_journal(folder: str) -> str:
    """Results are written into the arms' folders, which changes the time of those."""
    try:
        with os.scandir(folder) as entries:
            seen = sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries if entry.name != _LOCK)
    except (OSError, ValueError):
        return "unreadable"
    return json.dumps(seen)


def _folder_names(root: Path) -> list[str]:
    names = subfolders(root)
    unusable = [name for name in names if not name.isprintable()]
    for name in unusable:
        from ..log import get_logger

        get_logger(__name__).warning("%s: the folder %a is passed over: rename it to see it", root, name)
    return [name for name in names if name not in unusable] if unusable else names


def _new_row(root: Path, seen: str, name: str) -> NewRow:
    from ..record.reader import ExperimentRecord
    from ..record.view.build import view
    from .effects import contrasts_of

    record = ExperimentRecord(root / name)
    if not record.is_experiment:
        return make_row(name, seen, _FOREIGN)
    found = view(record)
    unfinished = record.ending == UNFINISHED and found.status != "damaged"
    return make_row(name, seen, found.status, found, contrasts_of(record, found), unfinished=int(unfinished))


def _is_running(folder: Path) -> bool:
    from ..record.reader import ExperimentRecord

    return ExperimentRecord(folder).is_running


def _restore(root: Path, cache: ViewCache, where: str, values: Sequence[Any]) -> list[ExperimentView]:
    # A root may have been moved since, with its cache.
    return [
        ExperimentView.from_json(cache.view_of(folder), path=f"{root}{os.sep}{folder}")
        for (folder,) in cache.read(("folder",), where, values)
    ]


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions, all of which must hold; of several values for one, any may."""

    statuses: Sequence[str] = ()
    verdicts: Sequence[str] = ()
    """`none` stands for experiments without a conclusion."""
    tags: Sequence[str] = ()
    """Of several, all must be there."""
    algorithm: str = ""
    model: str = ""
    """Part of the model's name."""
    since: float | None = None
    metric_above: float | None = None
    """Only experiments whose best score is above this."""
    search: str = ""
    """Words that must all occur in name, hypothesis, description, notes or conclusion."""

    def condition(self) -> tuple[str, list[Any]]:
        """The same as an SQL condition on the cache's columns."""
        parts: list[str] = []
        values: list[Any] = []

        def add(part: str, *given: Any) -> None:
            parts.append(part)
            values.extend(given)

        if self.statuses:
            add(f"status IN ({_marks(self.statuses)})", *self.statuses)
        if self.verdicts:
            wanted = ["" if verdict == NO_VERDICT else verdict for verdict in self.verdicts]
            add(f"verdict IN ({_marks(wanted)})", *wanted)
        for tag in self.tags:
            add("instr(tags, ?) > 0", f"|{tag.casefold()}|")
        if self.algorithm:
            add("instr(algorithms, ?) > 0", f"|{self.algorithm.casefold()}|")
        if self.model:
            add("instr(models, ?) > 0", self.model.casefold())
        if self.since is not None:
            add("started >= ?", self.since)
        if self.metric_above is not None:
            add("score > ?", self.metric_above)
        for word in self.search.casefold().split():
            add(f"instr({SEARCHED}, ?) > 0", word)
        return " AND ".join(parts), values


@dataclass(frozen=True, slots=True)
class _Order:
    sql: str
    key: Callable[[ExperimentView], Any]


def _score_key(one: ExperimentView) -> tuple[bool, float]:
    score = one.best_score
    return score is None, 0.0 if score is None else score if one.mode == "min" else -score


# Twice: as the database sorts within a root, and as what several roots give is merged.
ORDERS = {
    "newest": _Order("started DESC, folder", lambda one: (-(one.started or 0.0), one.path)),
    "oldest": _Order("started, folder", lambda one: (one.started or 0.0, one.path)),
    "score": _Order(
        "score IS NULL, CASE mode WHEN 'min' THEN score ELSE -score END, folder",
        lambda one: (*_score_key(one), one.path),
    ),
    "spend": _Order(
        "ifnull(usd, 0) DESC, ifnull(wall_s, 0) DESC, folder",
        lambda one: (-one.spend.get("usd", 0.0), -one.spend.get("wall_s", 0.0), one.path),
    ),
    "name": _Order("name, folder", lambda one: (one.name, one.path)),
}


def select(
    index: HistoryIndex,
    filters: Filters | None = None,
    *,
    sort: str = "newest",
    limit: int | None = None,
    offset: int = 0,
) -> list[ExperimentView]:
    """The experiments that meet the filters, in order; `offset` of them are passed over."""
    order = ORDERS[sort]
    condition, values = (filters or Filters()).condition()
    several = len(index.roots) > 1
    # Of several roots each gives its first ones: which of them are passed over is known once they are merged.
    skipped, end = (0, None if limit is None else offset + limit) if several else (offset, limit)
    tail = f"ORDER BY {order.sql} LIMIT {-1 if end is None else int(end)} OFFSET {int(skipped)}"
    found = index.views(condition, values, tail)
    return sorted(found, key=order.key)[offset:end] if several else found


def count(index: HistoryIndex, filters: Filters | None = None) -> int:
    """How many experiments meet the filters."""
    condition, values = (filters or Filters()).condition()
    return sum(row[0] for row in index.rows(("count(*)",), condition, values))


def check_word(value: str, known: Sequence[str], option: str) -> str:
    """`value`, if it is one of the words an option takes."""
    if value in known:
        return value
    guess = closest(value, known)
    hint = f"Did you mean '{guess}'?" if guess else f"Choose among {', '.join(known)}."
    raise DataError(f"{option} {show(value)}: there is no such value. {hint}")


def check_status(value: str) -> str:
    """`value`, if experiments can have that status."""
    return check_word(value, STATUSES, "--status")


def check_verdict(value: str) -> str:
    """`value`, if experiments can have that verdict."""
    return check_word(value, (*VERDICTS, NO_VERDICT), "--verdict")


def parse_since(text: str) -> float:
    """`7d`, `12h`, `2w`, or a date as `2026-01-31`, as seconds since 1970."""
    if found := _AGO.fullmatch(text.strip()):
        return time.time() - float(found[1]) * _SECONDS[found[2]]
    try:
        from datetime import datetime

        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        message = f"--since {show(text)}: this is no date. Write one as 2026-01-31, or how long ago as 7d, 12h or 2w."
        raise DataError(message) from None


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
