"""Cost, time and tokens per rollout and per correct answer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from ...errors import EvalError
from ..samples import TaskSamples
from .passing import PassParams

type Expense = Literal["cost_usd", "seconds", "tokens"]


class ExpensePerTask:
    """Base of `cost_per_task`, `time_per_task` and `tokens_per_task`: the mean expense of a rollout."""

    expense: ClassVar[Expense]

    def compute(self, *, tasks: Sequence[TaskSamples]) -> float:
        """The mean over tasks of the mean over their samples."""
        return statistics.fmean(mean_expense(task, self.expense) for task in tasks)


class ExpensePerCorrect:
    """Base of `cost_per_correct` and its siblings: expense, failures included, per correct answer."""

    expense: ClassVar[Expense]
    Config: ClassVar[type[PassParams]] = PassParams

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def compute(self, *, tasks: Sequence[TaskSamples], task_rewards: Sequence[Sequence[float]]) -> float:
        """Mean expense of a rollout divided by the share of correct rollouts."""
        passed = [statistics.fmean(reward >= self.cfg.threshold for reward in rewards) for rewards in task_rewards]
        if not any(passed):
            raise EvalError(f"no answer is correct, so there is no {self.expense} per correct answer to report.")
        return statistics.fmean(mean_expense(task, self.expense) for task in tasks) / statistics.fmean(passed)


def mean_expense(task: TaskSamples, expense: Expense) -> float:
    """The mean expense of one sample of a task."""
    values: list[float | None] = [getattr(sample, expense) for sample in task.samples]
    priced = [value for value in values if value is not None]
    if len(priced) < len(values):
        raise EvalError(
            f"{expense} is unknown for {len(values) - len(priced)} of {len(values)} samples of task '{task.task_id}'. "
            "Only what a policy reports can be added up; a model without a known price has no cost."
        )
    return statistics.fmean(priced)


class CostPerTask(ExpensePerTask):
    """Mean cost of one rollout in US dollars."""

    name: ClassVar[str] = "cost_per_task"
    expense: ClassVar[Expense] = "cost_usd"


class CostPerCorrect(ExpensePerCorrect):
    """US dollars per correct answer, failed rollouts included."""

    name: ClassVar[str] = "cost_per_correct"
    expense: ClassVar[Expense] = "cost_usd"


class TimePerTask(ExpensePerTask):
    """Mean seconds of one rollout."""

    name: ClassVar[str] = "time_per_task"
    expense: ClassVar[Expense] = "seconds"


class TimePerCorrect(ExpensePerCorrect):
    """Seconds per correct answer, failed rollouts included."""

    name: ClassVar[str] = "time_per_correct"
    expense: ClassVar[Expense] = "seconds"


class TokensPerTask(ExpensePerTask):
    """Mean tokens read and written in one rollout."""

    name: ClassVar[str] = "tokens_per_task"
    expense: ClassVar[Expense] = "tokens"


class TokensPerCorrect(ExpensePerCorrect):
    """Tokens read and written per correct answer, failed rollouts included."""

    name: ClassVar[str] = "tokens_per_correct"
    expense: ClassVar[Expense] = "tokens"
