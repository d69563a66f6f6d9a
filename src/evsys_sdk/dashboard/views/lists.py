"""Lists of experiments, for records on disk and in a database: the overview, pages, and lookup by id."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...history.attention import ATTENTION_DAYS, AttentionItem, find_attention
from ...history.cache import read_between_bars
from ...history.query import ARCHIVED, NO_VERDICT, ORDERS, Filters, ViewTable, count, count_trials, page, select
from ...record.view.model import LIVE, ExperimentView
from ..shapes.experiment import Experiments, Live, Overview, Progress, ShownExperiment
from .source import BadQuery, ExperimentQuery, read_cursor, write_cursor

_MOST_RUNNING = 40
_MOST_FACETS = 200
_MOST_SEARCHED = 60
"""Number of latest experiments that are searched for items that need human attention."""
_SPEND = {"usd": "usd", "tokens": "tokens_trained", "wall_s": "wall_s"}
"""Column -> its name in `spend`."""
_GROUPS = "GROUP BY status, verdict"
_LINE = tuple(name for name in ExperimentView.__slots__ if name not in ("runs", "arms", "failures", "notes"))


class RecordLists(ABC):
    """The lists of experiments of a record, computed from its table of views."""

    @abstractmethod
    def views(self) -> AbstractContextManager[ViewTable]:
        """The current views."""

    @abstractmethod
    def version(self) -> int:
        """A number that grows with every change of the record."""

    @abstractmethod
    def show(self, view: ExperimentView) -> ShownExperiment:
        """The line of a list for an experiment, with its progress if it is running."""

    def progress(self, n_indexed: int) -> Progress | None:
        """The progress of the first indexing, with `n_indexed` experiments so far; None if it is complete."""
        return None

    def attention(self, views: Sequence[ExperimentView]) -> list[AttentionItem]:
        """Items among the latest experiments that need human attention."""
        return find_attention(views)

    def overview(self) -> Overview:
        """The overview of the project."""
        with self.views() as table:

            def rows(*columns: str, tail: str = "") -> list[Any]:
                return [row for _, group in table.rows_by_root(columns, tail=tail) for row in group]

            groups = rows("status", "verdict", "count(*)", *(f"sum({name})" for name in _SPEND), tail=_GROUPS)
            facets = [_facets(rows(f"DISTINCT {name}")) for name in ("tags", "models", "algorithms")]
            running = select(table, Filters(statuses=LIVE), limit=_MOST_RUNNING)
            trials = count_trials(table)
            now = time.time() // 60 * 60  # rounded to the minute, so that the query can be cached
            recent = Filters(since=now - ATTENTION_DAYS * 86_400, without=(ARCHIVED,))
            latest = select(table, recent, limit=_MOST_SEARCHED)
        by_status: dict[str, int] = {}
        by_verdict: dict[str, int] = {}
        spend: dict[str, float] = {}
        for status, verdict, number, *sums in groups:
            by_status[status] = by_status.get(status, 0) + number
            by_verdict[verdict or NO_VERDICT] = by_verdict.get(verdict or NO_VERDICT, 0) + number
            for name, total in zip(_SPEND.values(), sums, strict=True):
                if total is not None:
                    spend[name] = spend.get(name, 0.0) + total
        total = sum(by_status.values())
        return Overview(
            total=total,
            by_status=by_status,
            by_verdict=by_verdict,
            spend=spend,
            trials=trials,
            tags=facets[0],
            models=facets[1],
            algorithms=facets[2],
            running=[self.show(view) for view in running],
            attention=self.attention([*(view for view in running if view.status == "waiting"), *latest]),
            version=self.version(),
            reading=self.progress(total),
        )

    def list_experiments(self, query: ExperimentQuery) -> Experiments:
        """A page of the experiments that match all filters."""
        if query.sort not in ORDERS:
            raise BadQuery(f"sort is {query.sort[:40]!r}. It can be {', '.join(ORDERS)}.")
        kinds = [str if key == "name" else (int, float) for key in ORDERS[query.sort]]
        after = tuple(read_cursor(query.cursor, *kinds, str, int)) if query.cursor else None
        with self.views() as table:
            matches, following = page(
                table,
                query.filters.condition(table.text),
                sort=query.sort,
                limit=query.limit,
                offset=0 if after else query.offset,
                after=after,
            )
            # If the first page is not full, it has all experiments, so no count is needed.
            is_all = after is None and not query.offset and following is None
            total = len(matches) if is_all else count(table, query.filters)
        shown = [self.show(view) for view in matches]
        return Experiments(items=shown, next=write_cursor(*following) if following else None, total=total)

    def experiments(self, ids: Sequence[str]) -> list[ShownExperiment]:
        """The experiments with these ids; unknown ids are skipped."""
        marks = ",".join("?" * len(ids))
        with self.views() as table:
            matches, _ = page(table, (f"id IN ({marks})", list(ids)))
        return [self.show(view) for view in matches]


def shown(view: ExperimentView, version: int, live: Live | None = None, *, line: bool = False) -> ShownExperiment:
    """A view in the shape of the API; with `line`, without runs, arms, failures and notes."""
    values = {name: getattr(view, name) for name in (_LINE if line else ExperimentView.__slots__)}
    return ShownExperiment(**values, n_notes=len(view.notes), version=version, live=live)


def _facets(rows: Sequence[Sequence[Any]]) -> list[str]:
    """The distinct values of a column that stores lists separated by bars."""
    return sorted({word for (column,) in rows for word in read_between_bars(column)})[:_MOST_FACETS]
