"""How many tokens a correct answer takes."""

from __future__ import annotations

from typing import ClassVar

from ..economics import Expense, ExpensePerCorrect


class TokensPerCorrect(ExpensePerCorrect):
    """Tokens read and written for each correct answer, failed attempts included."""

    name: ClassVar[str] = "tokens_per_correct"
    expense: ClassVar[Expense] = "tokens"
