"""Queries over views, for a disk and for a server: filters, search, order, pages and counts.

A `ViewTable` has one row for each experiment: the cache of a disk (`index.py`), or a table of a dashboard's database
(`dashboard/server/storage/views.py`). Conditions are SQL for SQLite; the table of PostgreSQL translates `instr` and the
placeholders of values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import DataError, show, suggest
from ..record.view.model import STATUSES, VERDICTS, ExperimentView
from .cache import SEARCHED, Row

NO_VERDICT = "none"
ARCHIVED = "archived"
"""Tag of experiments that the lists of a dashboard hide by default."""
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
ORDERS: dict[str, tuple[str, ...]] = {
    "newest": ("-coalesce(started, 0)",),
    "oldest": ("coalesce(started, 0)",),
    "score": ("CASE WHEN score IS NULL THEN 1e308 WHEN mode = 'min' THEN score ELSE -score END",),
    "spend": ("-coalesce(usd, 0)", "-coalesce(wall_s, 0)"),
    "name": ("name",),
}
"""Sort keys of lists, always ascending, so that one comparison finds the next page in any order."""

type Place = tuple[Any, ...]
"""The position of an experiment in a list: its sort keys, its folder, and the number of its root."""


class ViewTable(Protocol):
    """A table with the columns of `cache.COLUMNS`, and a view per row."""

    text: str
    """The SQL expression of the searched text."""

    def rows_by_root(
        self, columns: Sequence[str], condition: str = "", values: Sequence[Any] = (), tail: str = ""
    ) -> Sequence[tuple[Any, Sequence[Row]]]:
        """Columns of the rows that meet a condition, by root."""
        ...

    def load(self, places: Sequence[tuple[str, int]]) -> list[ExperimentView]:
        """The views of folders, given as (folder, number of its root)."""
        ...


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that must all hold; of several values of a field, any may match."""

    statuses: Sequence[str] = ()
    verdicts: Sequence[str] = ()
    """`none` stands for experiments without a conclusion."""
    tags: Sequence[str] = ()
    """All must be present."""
    algorithm: str = ""
    model: str = ""
    """Part of the model's name."""
    since: float | None = None
    metric_above: float | None = None
    """Only experiments whose best score is above this."""
    search: str = ""
    """Words that must all occur in name, hypothesis, description, notes or conclusion."""
    parent: str = ""
    """Id of the parent experiment."""
    without: Sequence[str] = ()
    """Tags that must be absent."""

    def condition(self, text: str = SEARCHED) -> tuple[str, list[Any]]:
        """The filters as an SQL condition with its values; `text` is the expression of the searched text."""
        parts: list[str] = []
        values: list[Any] = []

        def add(part: str, *part_values: Any) -> None:
            parts.append(part)
            values.extend(part_values)

        if self.statuses:
            add(f"status IN ({_marks(self.statuses)})", *self.statuses)
        if self.verdicts:
            verdicts = ["" if verdict == NO_VERDICT else verdict for verdict in self.verdicts]
            add(f"verdict IN ({_marks(verdicts)})", *verdicts)
        for tag in self.tags:
            add("instr(tags, ?) > 0", f"|{tag.casefold()}|")
        for tag in self.without:
            add("instr(tags, ?) = 0", f"|{tag.casefold()}|")
        if self.algorithm:
            add("instr(algorithms, ?) > 0", f"|{self.algorithm.casefold()}|")
        if self.model:
            add("instr(models, ?) > 0", self.model.casefold())
        if self.parent:
            add("parent = ?", self.parent)
        if self.since is not None:
            add("started >= ?", self.since)
        if self.metric_above is not None:
            add("score > ?", self.metric_above)
        for word in self.search.casefold().split():
            add(f"instr({text}, ?) > 0", word)
        return " AND ".join(parts), values


def select(
    table: ViewTable, filters: Filters | None = None, *, sort: str = "newest", limit: int | None = None
) -> list[ExperimentView]:
    """The experiments that meet the filters, in order."""
    return page(table, (filters or Filters()).condition(table.text), sort=sort, limit=limit)[0]


def page(
    table: ViewTable,
    condition: tuple[str, Sequence[Any]],
    *,
    sort: str = "newest",
    limit: int | None = None,
    offset: int = 0,
    after: Place | None = None,
) -> tuple[list[ExperimentView], Place | None]:
    """The experiments that meet an SQL condition, from `offset` on or `after` a place, and the place of the next page.

    A place names the last shown experiment instead of an offset, because new experiments change offsets.
    """
    keys = [*ORDERS[sort], "folder"]
    where, values = condition[0], list(condition[1])
    if after is not None:
        later = f"({', '.join(keys)}) >= ({_marks(keys)})"  # `>=`, because another root may have equal keys
        where, values = f"({where}) AND {later}" if where else later, [*values, *after[:-1]]
    end = "" if limit is None else f" LIMIT {offset + limit + 2}"
    rows_by_root = table.rows_by_root(keys, where, values, f"ORDER BY {', '.join(keys)}{end}")
    places: list[Place] = sorted((*row, number) for number, (_, rows) in enumerate(rows_by_root) for row in rows)
    places = [place for place in places if after is None or place > after][offset:]
    shown = places[:limit]
    following = shown[-1] if shown and len(shown) < len(places) else None
    return table.load([(place[-2], place[-1]) for place in shown]), following


def count(table: ViewTable, filters: Filters | None = None) -> int:
    """The number of experiments that meet the filters."""
    condition = (filters or Filters()).condition(table.text)
    return sum(row[0] for _, rows in table.rows_by_root(("count(*)",), *condition) for row in rows)


def count_trials(table: ViewTable, filters: Filters | None = None) -> dict[str, float]:
    """The number of tested and supported claims, and the upper bound of expected false ones; empty without claims.

    The bound is the sum of the false positive rates of all tested claims.
    """
    condition, values = (filters or Filters()).condition(table.text)
    within = " AND ".join(part for part in (condition, "error_rate IS NOT NULL") if part)
    columns = ("count(*)", "sum(CASE WHEN verdict = 'supported' THEN 1 ELSE 0 END)", "sum(error_rate)")
    rows = [row for _, batch in table.rows_by_root(columns, within, values) for row in batch]
    tested, supported, expected = (sum(row[at] or 0 for row in rows) for at in range(3))
    return {"tested": tested, "supported": supported, "expected_false": round(expected, 4)} if tested else {}


def check_word(value: str, known: Sequence[str], option: str) -> str:
    """`value`, if it is a known value of the option; else DataError."""
    if value in known:
        return value
    hint = suggest(value, known) or f"Choose among {', '.join(known)}."
    raise DataError(f"{option} {show(value)}: there is no such value. {hint}")


def check_status(value: str) -> str:
    """`value`, if it is a status of experiments."""
    return check_word(value, STATUSES, "--status")


def check_verdict(value: str) -> str:
    """`value`, if it is a verdict or `none`."""
    return check_word(value, (*VERDICTS, NO_VERDICT), "--verdict")


def parse_since(text: str) -> float:
    """`7d`, `12h`, `2w` or a date such as `2026-01-31`, as seconds since 1970."""
    if ago := _AGO.fullmatch(text.strip()):
        return time.time() - float(ago[1]) * _SECONDS[ago[2]]
    try:
        from datetime import datetime

        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        message = (
            f"--since {show(text)}: this is not a date. Write one as 2026-01-31, or how long ago as 7d, 12h or 2w."
        )
        raise DataError(message) from None


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
