"""How long an attempt at a task takes."""

from __future__ import annotations

from typing import ClassVar

from ..economics import Expense, ExpensePerTask


class TimePerTask(ExpensePerTask):
    """Seconds that one attempt at a task takes, on average."""

    name: ClassVar[str] = "time_per_task"
    expense: ClassVar[Expense] = "seconds"
