"""Which experiments to show: filters, free-text search, order, and the tree of who was derived from whom."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DataError, closest, show
from .cache import SEARCHED
from .index import HistoryIndex
from .summary import STATUSES, VERDICTS, ExperimentSummary

NO_VERDICT = "none"
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


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
    key: Callable[[ExperimentSummary], Any]


def _score_key(summary: ExperimentSummary) -> tuple[bool, float]:
    score = summary.best_score
    return score is None, 0.0 if score is None else score if summary.mode == "min" else -score


def _spend_key(summary: ExperimentSummary) -> tuple[float, float]:
    return -summary.spend.get("usd", 0.0), -summary.spend.get("wall_s", 0.0)


ORDERS = {
    "newest": _Order("started DESC, folder", lambda one: (-(one.started or 0.0), one.path)),
    "oldest": _Order("started, folder", lambda one: (one.started or 0.0, one.path)),
    "score": _Order(
        "score IS NULL, CASE mode WHEN 'min' THEN score ELSE -score END, folder",
        lambda one: (*_score_key(one), one.path),
    ),
    "spend": _Order("ifnull(usd, 0) DESC, ifnull(wall_s, 0) DESC, folder", lambda one: (*_spend_key(one), one.path)),
    "name": _Order("name, folder", lambda one: (one.name, one.path)),
}


def select(
    index: HistoryIndex,
    filters: Filters | None = None,
    *,
    sort: str = "newest",
    limit: int | None = None,
    offset: int = 0,
) -> list[ExperimentSummary]:
    """The experiments that meet the filters, in order; `offset` of them are passed over."""
    order = ORDERS[sort]
    condition, values = (filters or Filters()).condition()
    several = len(index.roots) > 1
    skipped, end = (0, None if limit is None else offset + limit) if several else (offset, limit)
    tail = f"ORDER BY {order.sql} LIMIT {-1 if end is None else int(end)} OFFSET {int(skipped)}"
    found = index.summaries(condition, values, tail)
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
