"""`json_match`: the answer is the expected JSON value.

In a task:

    {fn_name: json_match, expected: {city: Paris, population: 2100000}, params: {relative_tolerance: 0.05}}
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from ...errors import MISSING, EvalError, show
from ...protocols import VerificationResult
from ..answers.answer import AnswerParams, find_json, strict_loads
from ..answers.compare import ValueComparison
from ..verifier import BaseVerifier


class JsonMatchParams(AnswerParams):
    """The options for comparing values."""

    mode: Literal["exact", "subset"] = "exact"
    """Whether objects must have exactly the expected keys (`exact`) or may have more (`subset`)."""
    ignore_order: bool = False
    """Whether the items of lists may be in any order."""
    ignore_case: bool = False
    """Whether to ignore case in texts; keys are always case-sensitive."""
    relative_tolerance: float = Field(default=1e-9, ge=0, le=1)
    """Maximum difference of numbers, relative to the expected number."""
    absolute_tolerance: float = Field(default=0.0, ge=0)
    """Maximum absolute difference of numbers; the larger of the two tolerances applies."""


class JsonMatch(BaseVerifier[JsonMatchParams]):
    """1 if the JSON in the answer is the expected value."""

    name: ClassVar[str] = "json_match"
    Config = JsonMatchParams

    def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Find the JSON in the answer and compare it with the expected value."""
        if target is None:
            raise EvalError("there is no expected value to compare with. Add 'expected' to the task's verifier.")
        expected = self._read_expected_json(target)
        if expected == "" or (self.cfg.mode == "subset" and expected in ({}, [])):
            raise EvalError(f"expected is {show(target)}, which any answer has. Give it a value.")
        answer = self.cfg.answer_in(completion)
        value = MISSING if answer is None else find_json(answer)
        if value is MISSING:
            return VerificationResult(0.0, {"found_json": False})
        compare = ValueComparison(
            relative_tolerance=self.cfg.relative_tolerance,
            absolute_tolerance=self.cfg.absolute_tolerance,
            extra_keys=self.cfg.mode == "subset",
            ignore_order=self.cfg.ignore_order,
            ignore_case=self.cfg.ignore_case,
        )
        return VerificationResult(float(compare.same(value, expected)), {"found_json": True})

    def _read_expected_json(self, target: Any) -> Any:
        """Parse an expected value that a dataset stores as JSON text."""
        if not isinstance(target, str):
            return target
        [text] = self.cfg.read_expected(target)
        try:
            return strict_loads(text)
        except ValueError:
            return text
