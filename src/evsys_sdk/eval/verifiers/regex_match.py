r"""`regex_match`: the answer matches a regular expression.

The pattern is what the task expects, or else a param; with both, what the pattern finds is compared with what is
expected.

    {fn_name: regex_match, expected: "^\\d{4}-\\d{2}-\\d{2}$"}
    {fn_name: regex_match, expected: "42", params: {pattern: "total: (\\d+)"}}
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ...errors import EvalError, show
from ...protocols import VerificationResult
from ..answers.answer import AnswerParams
from ..answers.bounded_regex import How, RegexTimeoutError, check_pattern, match_within
from ..verifier import BaseVerifier


class RegexMatchParams(AnswerParams):
    """The pattern and how it is applied."""

    pattern: str | None = Field(default=None, min_length=1)
    """Finds what is compared with the expected text: its first group, or all of it; by default, `expected` is it."""
    how: How = "search"
    """Whether the pattern may match anywhere, at the start, or must match all of the answer."""
    ignore_case: bool = False
    """Whether differences between capitals and small letters are ignored."""
    multiline: bool = False
    """Whether ^ and $ also match at the ends of lines."""
    dot_matches_newline: bool = False
    """Whether . matches line ends."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Longest time for one match; some patterns take forever on some texts."""
    on_timeout: Literal["error", "no_match"] = "error"
    """What a match that takes too long means."""

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        return None if value is None else check_pattern(value)

    @property
    def flags(self) -> int:
        """The options as `re` knows them."""
        chosen = {re.I: self.ignore_case, re.M: self.multiline, re.S: self.dot_matches_newline}
        return sum(int(flag) for flag, wanted in chosen.items() if wanted)


class RegexMatch(BaseVerifier[RegexMatchParams]):
    """1 if the answer matches a pattern, within a time limit."""

    name: ClassVar[str] = "regex_match"
    Config = RegexMatchParams

    async def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Match the answer, in another process that can be ended."""
        pattern = self.cfg.pattern or self._read_pattern(target)
        right = self.cfg.read_expected(target) if self.cfg.pattern and target is not None else None
        answer = self._answer_in(completion, pattern)
        if answer is None:
            return VerificationResult(0.0, {"match": None})
        try:
            groups = await match_within(self.cfg.timeout_s, pattern, answer, how=self.cfg.how, flags=self.cfg.flags)
        except RegexTimeoutError as error:
            if self.cfg.on_timeout == "error":
                raise
            return VerificationResult(0.0, {"match": None, "timed_out": str(error)})
        found = None if groups is None else groups[min(1, len(groups) - 1)]
        fits = groups is not None and (right is None or found in right)
        return VerificationResult(float(fits), {"match": found})

    def _answer_in(self, completion: str, pattern: str) -> str | None:
        """What is matched: with its tag, where the pattern asks for that tag."""
        if self.cfg.answer_tag is None or f"<{self.cfg.answer_tag}>" not in pattern:
            return self.cfg.answer_in(completion)
        return self.cfg.model_copy(update={"answer_tag": None, "require_answer_tag": False}).answer_in(completion)

    def _read_pattern(self, target: Any) -> str:
        if not isinstance(target, str) or not target:
            raise EvalError(f"there is no pattern: expected is {show(target)}. Give 'expected' or the param 'pattern'.")
        try:
            return check_pattern(target)
        except ValueError as error:
            raise EvalError(f"the expected pattern {error}") from error
