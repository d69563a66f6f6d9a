"""How many tokens an attempt at a task takes."""

from __future__ import annotations

from typing import ClassVar

from ..economics import Expense, ExpensePerTask


class TokensPerTask(ExpensePerTask):
    """Tokens read and written in one attempt at a task, on average."""

    name: ClassVar[str] = "tokens_per_task"
    expense: ClassVar[Expense] = "tokens"
