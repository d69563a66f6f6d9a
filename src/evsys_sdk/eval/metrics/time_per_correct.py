"""How long a correct answer takes."""

from __future__ import annotations

from typing import ClassVar

from ..economics import Expense, ExpensePerCorrect


class TimePerCorrect(ExpensePerCorrect):
    """Seconds spent for each correct answer, failed attempts included."""

    name: ClassVar[str] = "time_per_correct"
    expense: ClassVar[Expense] = "seconds"
