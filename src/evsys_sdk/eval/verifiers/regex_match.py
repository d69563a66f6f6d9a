r"""`regex_match`: the answer matches a regular expression.

The pattern is `expected` of the task, or the param `pattern`. With both, the match of `pattern` is compared with
`expected`.

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
    """The pattern and its options."""

    pattern: str | None = Field(default=None, min_length=1)
    """Pattern whose match (its first group, if it has groups) is compared with `expected`; by default, `expected` is
    the pattern."""
    how: How = "search"
    """Whether the pattern may match anywhere, at the start, or must match the whole answer."""
    ignore_case: bool = False
    """Whether to ignore case."""
    multiline: bool = False
    """Whether ^ and $ also match at the start and end of lines."""
    dot_matches_newline: bool = False
    """Whether . matches line ends."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Time limit of a match in seconds, because some patterns need exponential time."""
    on_timeout: Literal["error", "no_match"] = "error"
    """Whether a timeout is an error or counts as no match."""

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        return None if value is None else check_pattern(value)

    @property
    def flags(self) -> int:
        """The options as flags of `re`."""
        chosen = {re.I: self.ignore_case, re.M: self.multiline, re.S: self.dot_matches_newline}
        return sum(int(flag) for flag, is_set in chosen.items() if is_set)


class RegexMatch(BaseVerifier[RegexMatchParams]):
    """1 if the answer matches a pattern, within a time limit."""

    name: ClassVar[str] = "regex_match"
    Config = RegexMatchParams

    async def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Match the answer in a separate process, which can be killed on a timeout."""
        pattern = self.cfg.pattern or self._read_pattern(target)
        expected = self.cfg.read_expected(target) if self.cfg.pattern and target is not None else None
        answer = self._answer_in(completion, pattern)
        if answer is None:
            return VerificationResult(0.0, {"match": None})
        try:
            groups = await match_within(self.cfg.timeout_s, pattern, answer, how=self.cfg.how, flags=self.cfg.flags)
        except RegexTimeoutError as error:
            if self.cfg.on_timeout == "error":
                raise
            return VerificationResult(0.0, {"match": None, "timed_out": str(error)})
        matched = None if groups is None else groups[min(1, len(groups) - 1)]
        is_right = groups is not None and (expected is None or matched in expected)
        return VerificationResult(float(is_right), {"match": matched})

    def _answer_in(self, completion: str, pattern: str) -> str | None:
        """Return the text to match; it includes the answer tag if the pattern contains that tag."""
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
