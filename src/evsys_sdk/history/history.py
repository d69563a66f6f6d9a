"""`History`: read the experiments of a project from Python.

from evsys_sdk import History

with History() as history:
    for view in history.select(verdicts=["supported"], limit=5):
        print(view.id, view.question.label, view.best_run, view.best_score)
    view = history.get("my-experiment")
    by_task = history.scores(view, "steps-60")["test/routing/pass@1"].by_task
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import DataError
from ..record.reader import ExperimentRecord
from ..record.view.build import view
from ..record.view.model import ExperimentView
from ..record.view.task_scores import SetScores, scores_of
from .find import experiment_roots, find_experiment
from .index import HistoryIndex
from .query import ORDERS, Filters, check_word, count, select


class History:
    """The experiments below some folders; by default those of the current project."""

    def __init__(self, roots: Sequence[str | Path] = ()) -> None:
        self.roots = experiment_roots(roots)
        self._index = HistoryIndex(self.roots)

    def select(self, *, sort: str = "newest", limit: int | None = None, **filters: Any) -> list[ExperimentView]:
        """The experiments that meet all filters (fields of `Filters`: statuses, verdicts, tags, model, search, ...)."""
        return select(self._index, Filters(**filters), sort=check_word(sort, list(ORDERS), "sort"), limit=limit)

    def count(self, **filters: Any) -> int:
        """How many experiments meet all filters."""
        return count(self._index, Filters(**filters))

    def get(self, reference: str | Path) -> ExperimentView:
        """One experiment by path, id, the beginning of its id, or name (its latest attempt), read now."""
        return view(ExperimentRecord.open(find_experiment(str(reference), self.roots)))

    def same_question(self, of: ExperimentView) -> list[ExperimentView]:
        """The other experiments with the same question, whose scores are comparable."""
        return [view for view in self.select() if view.question == of.question and view.id != of.id]

    def scores(self, of: ExperimentView, run: str | None = None) -> dict[str, SetScores]:
        """Full metric name -> scores of each seed of a run, in total and by task; by default of the best run."""
        name = run or of.best_run
        arms = [arm for arm in ExperimentRecord.open(of.folder).runs_on_disk if arm.run == name]
        if not arms:
            raise DataError(f"{of.id}: there is no run {name!r}. It has: {', '.join(entry.run for entry in of.runs)}.")
        return scores_of(arms)

    def close(self) -> None:
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
