"""What answers cost: money, time and tokens, for each attempt and for each correct answer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from ...errors import EvalError
from ..samples import TaskSamples
from .passing import PassParams

type Expense = Literal["cost_usd", "seconds", "tokens"]


class ExpensePerTask:
    """Base of `cost_per_task` and its like: what one attempt at a task takes, on average."""

    expense: ClassVar[Expense]

    def compute(self, *, tasks: Sequence[TaskSamples]) -> float:
        """The mean over tasks of the mean over their samples."""
        return statistics.fmean(mean_expense(task, self.expense) for task in tasks)


class ExpensePerCorrect:
    """Base of `cost_per_correct` and its like: what is spent, failures included, until one answer is correct."""

    expense: ClassVar[Expense]
    Config: ClassVar[type[PassParams]] = PassParams

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def compute(self, *, tasks: Sequence[TaskSamples], task_rewards: Sequence[Sequence[float]]) -> float:
        """The expense of an attempt, divided by the share of attempts that are correct."""
        passed = [statistics.fmean(reward >= self.cfg.threshold for reward in rewards) for rewards in task_rewards]
        if not any(passed):
            raise EvalError(f"no answer is correct, so there is no {self.expense} per correct answer to report.")
        return statistics.fmean(mean_expense(task, self.expense) for task in tasks) / statistics.fmean(passed)


def mean_expense(task: TaskSamples, expense: Expense) -> float:
    """What one sample of a task took, on average."""
    found: list[float | None] = [getattr(sample, expense) for sample in task.samples]
    known = [value for value in found if value is not None]
    if len(known) < len(found):
        raise EvalError(
            f"{expense} is not known for {len(found) - len(known)} of {len(found)} samples of task '{task.task_id}'. "
            "Only what a policy reports can be added up; a model without a known price has no cost."
        )
    return statistics.fmean(known)


class CostPerTask(ExpensePerTask):
    """US dollars that one attempt at a task costs, on average."""

    name: ClassVar[str] = "cost_per_task"
    expense: ClassVar[Expense] = "cost_usd"


class CostPerCorrect(ExpensePerCorrect):
    """US dollars spent for each correct answer, failed attempts included."""

    name: ClassVar[str] = "cost_per_correct"
    expense: ClassVar[Expense] = "cost_usd"


class TimePerTask(ExpensePerTask):
    """Seconds that one attempt at a task takes, on average."""

    name: ClassVar[str] = "time_per_task"
    expense: ClassVar[Expense] = "seconds"


class TimePerCorrect(ExpensePerCorrect):
    """Seconds spent for each correct answer, failed attempts included."""

    name: ClassVar[str] = "time_per_correct"
    expense: ClassVar[Expense] = "seconds"


class TokensPerTask(ExpensePerTask):
    """Tokens read and written in one attempt at a task, on average."""

    name: ClassVar[str] = "tokens_per_task"
    expense: ClassVar[Expense] = "tokens"


class TokensPerCorrect(ExpensePerCorrect):
    """Tokens read and written for each correct answer, failed attempts included."""

    name: ClassVar[str] = "tokens_per_correct"
    expense: ClassVar[Expense] = "tokens"
