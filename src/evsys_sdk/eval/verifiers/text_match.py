"""`exact_match`: the answer is the expected text. `contains`: the expected text occurs in the answer."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, ClassVar, Literal

from ...errors import EvalError
from ...protocols import VerificationResult
from ..answers.answer import AnswerParams
from ..verifier import BaseVerifier


class ExactMatchParams(AnswerParams):
    """The options for comparing texts."""

    ignore_case: bool = False
    """Whether to ignore case."""
    ignore_punctuation: bool = False
    """Whether to ignore punctuation."""
    collapse_whitespace: bool = False
    """Whether to treat runs of white space as one space."""

    def normalise_text(self, text: str) -> str:
        """Return the text without ignored differences."""
        text = unicodedata.normalize("NFC", text)  # the same letter can have two encodings
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            text = "".join(letter for letter in text if not unicodedata.category(letter).startswith("P"))
        return " ".join(text.split()) if self.collapse_whitespace else text.strip()


class ExactMatch(BaseVerifier[ExactMatchParams]):
    """1 if the answer is the expected text, or one of several expected texts.

    In a task:

        verifier: {kind: in_process, fn_name: exact_match, expected: "Paris", params: {ignore_case: true}}
    """

    name: ClassVar[str] = "exact_match"
    Config = ExactMatchParams

    def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Compare the answer with each expected text."""
        expected = [self.cfg.normalise_text(text) for text in self.cfg.read_expected(target)]
        if not all(expected):
            raise EvalError("an expected text is blank, and an empty answer would be right. Give it a text.")
        answer = self.cfg.answer_in(completion)
        is_right = answer is not None and self.cfg.normalise_text(answer) in expected
        return VerificationResult(float(is_right), {"answer": answer})


class ContainsParams(AnswerParams):
    """The options for finding texts."""

    ignore_case: bool = False
    """Whether to ignore case."""
    whole_words: bool = False
    """Whether to match only whole words: `cat` does not occur in `category`."""
    match: Literal["any", "all"] = "all"
    """Whether all expected texts must occur, or any of them."""


class Contains(BaseVerifier[ContainsParams]):
    """1 if the expected text occurs in the answer; of several texts, all or any.

    In a task:

        verifier: {kind: in_process, fn_name: contains, expected: ["Marie", "Pierre"], params: {match: all}}
    """

    name: ClassVar[str] = "contains"
    Config = ContainsParams

    def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Search the answer for each expected text."""
        expected = self.cfg.read_expected(target)
        if not all(text.strip() for text in expected):
            raise EvalError("an expected text is empty, and every answer contains that. Give it a text.")
        answer = self.cfg.answer_in(completion)
        text = self._normalise(answer or "")
        missing = [part for part in expected if not self._occurs(self._normalise(part), text)]
        is_right = not missing if self.cfg.match == "all" else len(missing) < len(expected)
        return VerificationResult(float(is_right and answer is not None), {"missing": missing})

    def _normalise(self, text: str) -> str:
        text = unicodedata.normalize("NFC", text)
        return text.casefold() if self.cfg.ignore_case else text

    def _occurs(self, part: str, text: str) -> bool:
        if not self.cfg.whole_words:
            return part in text
        return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None
