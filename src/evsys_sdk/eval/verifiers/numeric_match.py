r"""`numeric_match`: the answer is the expected number, in any notation.

In a task:

    {fn_name: numeric_match, expected: 1234.5}                     "… so it is **1,234.50** euros."
    {fn_name: numeric_match, expected: "3/4"}                      "\boxed{\frac{3}{4}}", "0.75"
    {fn_name: numeric_match, expected: 0.5, params: {percent: fraction}}   "50%"
    {fn_name: numeric_match, expected: 5000, params: {units: {km: 1000, m: 1}}}   "5 km"
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...errors import EvalError, show
from ...protocols import VerificationResult
from ..answers.answer import AnswerParams, last_boxed
from ..answers.quantity import EXACT, DecimalMark, Notation, Quantity, close, plain
from ..verifier import BaseVerifier


class NumericMatchParams(AnswerParams):
    """Position, notation and tolerance of the number."""

    relative_tolerance: float = Field(default=1e-9, ge=0, le=1)
    """Maximum difference relative to the expected number; the default allows only floating-point noise."""
    absolute_tolerance: float = Field(default=0.0, ge=0)
    """Maximum absolute difference; the larger of the two tolerances applies."""
    which: Literal["last", "first", "only"] = "last"
    """The number to read if the answer has several; with `only`, such an answer scores 0."""
    boxed: bool = True
    r"""Whether to read only a LaTeX \boxed{…} if there is one."""
    percent: Literal["number", "fraction", "either"] = "number"
    """Whether 50% means 50, 0.5, or either."""
    decimal_mark: DecimalMark = "point"
    """Decimal separator: `point` for 1,234.5, `comma` for 1.234,5."""
    group_by_spaces: bool = False
    """Whether 1 000 000 is one number; with no-break spaces it always is."""
    units: dict[str, float] = {}
    """Units that may follow a number, with their factors; other words after a number are ignored."""


class NumericMatch(BaseVerifier[NumericMatchParams]):
    """1 if the answer is the expected number, within a tolerance."""

    name: ClassVar[str] = "numeric_match"
    Config = NumericMatchParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._notation = Notation(self.cfg.decimal_mark, self.cfg.group_by_spaces, tuple(self.cfg.units))

    def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Read the number and compare it with each expected number."""
        expected_values = [
            value for text in self.cfg.read_expected(target) for value in self._read_expected_numbers(text)
        ]
        answer = self.cfg.answer_in(completion)
        number = None if answer is None else self._read(answer)
        if number is None:
            return VerificationResult(0.0, {"number": None})
        tolerance = {"relative": self.cfg.relative_tolerance, "absolute": self.cfg.absolute_tolerance}
        equal = any(
            close(value, expected, **tolerance) for value in self._values(number) for expected in expected_values
        )
        return VerificationResult(float(equal), {"number": str(number.value)})

    def _read_expected_numbers(self, text: str) -> list[Decimal]:
        number = self._read(text)
        if number is None:
            raise EvalError(f"there is no number in the expected answer {show(text)}. Correct the task.")
        return self._values(number)

    def _read(self, text: str) -> Quantity | None:
        boxed = last_boxed(text) if self.cfg.boxed else None
        matches = self._notation.find(plain(text if boxed is None else boxed))
        match = next(matches, None)
        for later in matches if self.cfg.which != "first" else ():
            if self.cfg.which == "only":
                return None
            match = later
        return None if match is None else self._notation.read(match)

    def _values(self, quantity: Quantity) -> list[Decimal]:
        """Return the possible values of a number with its unit and percent sign."""
        value = quantity.value
        if quantity.unit is not None:
            value = EXACT.multiply(value, Decimal(repr(self.cfg.units[quantity.unit])))
        if not quantity.percent or self.cfg.percent == "number":
            return [value]
        share = EXACT.divide(value, Decimal(100))
        return [share] if self.cfg.percent == "fraction" else [value, share]
