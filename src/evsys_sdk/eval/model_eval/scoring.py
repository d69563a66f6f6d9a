"""Answers -> matches, row by row. Nothing here asks a model; projects with answers of their own start here.

rows = load_eval_dataset("eval.jsonl")
results = score_rows(rows, [["GMAIL_SEND_EMAIL"], [None]], AliasMatcher())     None: asking failed
summarize(results).pass_at_1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import EvalError
from .aliases import AliasMatcher, Match
from .dataset import EvalRow
from .extraction import extract_predicted_slug

type Extract = Callable[[str], str | None]
"""Finds the predicted slug in an answer."""

PASSES = frozenset({"exact", "alias"})
"""The matches that count as right."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer to a row, or the reason why there is none."""

    number: int
    """From 1."""
    completion: str | None
    """None when asking failed; then there is nothing to score."""
    predicted: str | None = None
    match: Match | None = None
    error: str | None = None
    truncated: bool = False
    """Whether the answer was cut off at `max_tokens`."""
    tokens: int | None = None
    """Tokens written, where the client counts them."""
    cost_usd: float | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether there is no answer; never the same as a wrong one."""
        return self.completion is None


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row and all attempts at it."""

    row: EvalRow
    attempts: tuple[Attempt, ...]

    @property
    def scored(self) -> list[Attempt]:
        """The attempts that have an answer."""
        return [attempt for attempt in self.attempts if not attempt.failed]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One record for each attempt, as `predictions.jsonl` holds them."""
        return [attempt_record(self.row, attempt) for attempt in self.attempts]


def attempt_record(row: EvalRow, attempt: Attempt) -> dict[str, Any]:
    """The JSON form of one attempt."""
    return {
        "id": row.id,
        "attempt": attempt.number,
        "prompt": row.question,
        "target": row.target,
        "toolkit": row.toolkit,
        "completion": attempt.completion,
        "predicted": attempt.predicted,
        "match": attempt.match,
        "error": attempt.error,
        "truncated": attempt.truncated,
        "tokens": attempt.tokens,
        "cost_usd": attempt.cost_usd,
        "seconds": attempt.seconds,
    }


def score_rows(
    rows: Sequence[EvalRow],
    completions: Sequence[Sequence[str | None]],
    matcher: AliasMatcher,
    *,
    extract: Extract = extract_predicted_slug,
) -> list[RowResult]:
    """Match answers with targets: for each row the texts of its attempts, None where asking failed."""
    if len(rows) != len(completions):
        raise EvalError(f"there are {len(rows)} rows and answers to {len(completions)}. Give a list for each row.")
    if any(isinstance(texts, str) for texts in completions):
        raise EvalError("each row needs a list of answers, also where there is only one. Write [[text], ...].")
    return [
        RowResult(row, tuple(judged(Attempt(at, text), row, matcher, extract) for at, text in enumerate(texts, 1)))
        for row, texts in zip(rows, completions, strict=True)
    ]


def judged(attempt: Attempt, row: EvalRow, matcher: AliasMatcher, extract: Extract) -> Attempt:
    """The attempt with what it predicts and how that matches."""
    if attempt.completion is None:
        return replace(attempt, predicted=None, match=None)
    predicted = extract(attempt.completion)
    return replace(attempt, predicted=predicted, match=matcher.match(predicted, row.target))
