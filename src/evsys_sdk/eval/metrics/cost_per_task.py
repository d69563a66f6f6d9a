"""What an attempt at a task costs."""

from __future__ import annotations

from typing import ClassVar

from ..economics import Expense, ExpensePerTask


class CostPerTask(ExpensePerTask):
    """US dollars that one attempt at a task costs, on average."""

    name: ClassVar[str] = "cost_per_task"
    expense: ClassVar[Expense] = "cost_usd"
