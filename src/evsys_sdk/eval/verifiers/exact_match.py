"""`exact_match`: the answer is the expected text.

In a task:

    verifier: {kind: in_process, fn_name: exact_match, expected: "Paris", params: {ignore_case: true}}
"""

from __future__ import annotations

import unicodedata
from typing import Any, ClassVar

from ...protocols import VerificationResult
from ..answer import AnswerParams
from ..verifier import BaseVerifier


class ExactMatchParams(AnswerParams):
    """What counts as the same text."""

    ignore_case: bool = False
    """Whether differences between capitals and small letters are ignored."""
    ignore_punctuation: bool = False
    """Whether punctuation is left out of both texts."""
    collapse_whitespace: bool = False
    """Whether runs of white space are the same as one space."""

    def normalised(self, text: str) -> str:
        """The text without the differences that do not count."""
        text = unicodedata.normalize("NFC", text)  # the same letter can be written in two ways
        if self.ignore_case:
            text = text.casefold()
        if self.ignore_punctuation:
            text = "".join(letter for letter in text if not unicodedata.category(letter).startswith("P"))
        return " ".join(text.split()) if self.collapse_whitespace else text.strip()


class ExactMatch(BaseVerifier[ExactMatchParams]):
    """1 if the answer is the expected text, or one of several."""

    name: ClassVar[str] = "exact_match"
    Config = ExactMatchParams

    def verify(self, *, completion: str, target: Any) -> VerificationResult:
        """Compare the answer with each text that would be right."""
        right = [self.cfg.normalised(text) for text in self.cfg.expected_in(target)]
        answer = self.cfg.answer_in(completion)
        found = answer is not None and self.cfg.normalised(answer) in right
        return VerificationResult(float(found), {"answer": answer})
