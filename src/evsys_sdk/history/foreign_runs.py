"""Compare two results of other evaluation programs task by task, with the statistics of runs."""

from __future__ import annotations

from ..errors import DataError
from ..eval.foreign_run import ForeignRun
from ..record.view.task_scores import SetScores
from .pairs import PairedDifference, pair_scores


def compare_foreign_runs(first: ForeignRun, second: ForeignRun) -> PairedDifference:
    """The mean reward of the second run minus that of the first, over their common samples."""
    if first.task != second.task:
        raise DataError(f"the runs are of task '{first.task}' and of task '{second.task}'. Compare runs of one task.")
    return pair_scores(f"{first.task}/mean_reward", _scores(first), _scores(second))


def _scores(run: ForeignRun) -> SetScores:
    by_task = run.by_task
    if not by_task:
        raise DataError(f"the run of '{run.model}' on '{run.task}' has no scored sample. Run it again.")
    return SetScores(run.tasks_hash, [sum(by_task.values()) / len(by_task)], [by_task])
