"""What a correct answer costs."""

from __future__ import annotations

from typing import ClassVar

from ..economics import Expense, ExpensePerCorrect


class CostPerCorrect(ExpensePerCorrect):
    """US dollars spent for each correct answer, failed attempts included."""

    name: ClassVar[str] = "cost_per_correct"
    expense: ClassVar[Expense] = "cost_usd"
