"""Matches -> numbers, each with its error. Rows are what was drawn, so they, not single attempts, are the clusters.

Attempts without an answer are counted and left out of every rate. A row that has no answer at all is unscored, and one
with fewer than k answers is left out of pass@k; each estimate says how many rows it rests on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...inference.retry import RetryReport
from ..passing import chance_of_any
from ..standard_error import stderr_of_mean
from .scoring import PASSES, RowResult

_Z = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over rows and how sure it is."""

    value: float
    stderr: float | None
    """Clustered by row; None for a single row."""
    low: float
    """Lower end of the 95 % interval (Wilson's, by rows): honest also where every row agrees and `stderr` is 0."""
    high: float
    n_rows: int


@dataclass(frozen=True, slots=True)
class ToolkitSummary:
    """The scores of one toolkit."""

    n_rows: int
    pass_at_1: Estimate | None
    pass_at_k: Estimate | None


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """What an evaluation found; an estimate is None where there is nothing to estimate from."""

    n_rows: int
    n_attempts: int
    n_failed_attempts: int
    n_unscored_rows: int
    """Rows none of whose attempts has an answer."""
    max_attempts: int
    pass_at: Mapping[int, Estimate | None]
    """pass@k by k: the chance that at least one of k answers matches exactly or by a verified alias, without bias."""
    pass_at_with_secondary: Mapping[int, Estimate | None]
    """The same if secondary aliases counted as well; empty without any."""
    rates: Mapping[str, Estimate | None]
    """Share of answers by how they match: exact, alias, secondary, none; together 1."""
    by_toolkit: Mapping[str, ToolkitSummary]
    """Empty when no row has a toolkit."""
    n_without_prediction: int
    """Answers that name no slug, or several."""
    n_truncated: int
    tokens: int
    cost_usd: float | None
    """None where the cost of any answer is not known."""
    retry_report: RetryReport
    """Calls, retries and the failures that remained."""
    model: str = ""
    notes: tuple[str, ...] = field(default=())
    """What a reader should know before believing the numbers."""

    @property
    def pass_at_1(self) -> Estimate | None:
        """The chance that one answer is right."""
        return self.pass_at[1]

    @property
    def pass_at_k(self) -> Estimate | None:
        """The chance that one of `max_attempts` answers is right."""
        return self.pass_at[self.max_attempts]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that `summary.json` holds."""
        counts = ("model", "n_rows", "n_attempts", "n_failed_attempts", "n_unscored_rows", "max_attempts")
        answers = ("n_without_prediction", "n_truncated", "tokens", "cost_usd")
        return {
            **{name: getattr(self, name) for name in counts},
            "pass_at": {str(k): _plain(found) for k, found in self.pass_at.items()},
            "pass_at_with_secondary": {str(k): _plain(found) for k, found in self.pass_at_with_secondary.items()},
            "rates": {kind: _plain(found) for kind, found in self.rates.items()},
            "by_toolkit": {name: asdict(found) for name, found in self.by_toolkit.items()},
            **{name: getattr(self, name) for name in answers},
            "retry_report": self.retry_report.to_dict(),
            "notes": list(self.notes),
        }


def summarize(
    results: Sequence[RowResult],
    *,
    max_attempts: int | None = None,
    secondary: bool = False,
    retry_report: RetryReport | None = None,
    model: str = "",
    notes: Sequence[str] = (),
) -> EvalSummary:
    """The numbers of scored rows; `secondary` says whether there were secondary aliases to report."""
    most = max_attempts or max((len(result.attempts) for result in results), default=1)
    answers = [attempt for result in results for attempt in result.scored]
    attempts = sum(len(result.attempts) for result in results)
    loose = _ks(most) if secondary else []
    costs = [attempt.cost_usd for attempt in answers]
    return EvalSummary(
        n_rows=len(results),
        n_attempts=attempts,
        n_failed_attempts=attempts - len(answers),
        n_unscored_rows=sum(not result.scored for result in results),
        max_attempts=most,
        pass_at={k: _pass_at(results, k, PASSES) for k in _ks(most)},
        pass_at_with_secondary={k: _pass_at(results, k, PASSES | {"secondary"}) for k in loose},
        rates={kind: _rate(results, kind) for kind in ("exact", "alias", "secondary", "none")},
        by_toolkit=_by_toolkit(results, most),
        n_without_prediction=sum(answer.predicted is None for answer in answers),
        n_truncated=sum(answer.truncated for answer in answers),
        tokens=sum(answer.tokens or 0 for answer in answers),
        cost_usd=math.fsum(cost or 0.0 for cost in costs) if None not in costs else None,
        retry_report=retry_report or RetryReport(),
        model=model,
        notes=tuple(notes),
    )


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of one value between 0 and 1 for each row."""
    n = len(values)
    if n == 0:
        return None
    mean = statistics.fmean(values)
    # Values between 0 and 1 vary at most as much as zeros and ones of the same mean, so this is never too narrow.
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(max(mean * (1 - mean), 0.0) / n + _Z**2 / (4 * n**2))
    return Estimate(mean, stderr_of_mean(values), max(0.0, centre - half), min(1.0, centre + half), n)


def _ks(most: int) -> list[int]:
    """1, 2, 4, … and the number of attempts itself."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _pass_at(results: Sequence[RowResult], k: int, passes: frozenset[str]) -> Estimate | None:
    enough = [result.scored for result in results if len(result.scored) >= k]
    return estimate([chance_of_any(len(row), sum(one.match in passes for one in row), k) for row in enough])


def _rate(results: Sequence[RowResult], kind: str) -> Estimate | None:
    rows = [result.scored for result in results if result.scored]
    return estimate([statistics.fmean(attempt.match == kind for attempt in row) for row in rows])


def _by_toolkit(results: Sequence[RowResult], most: int) -> dict[str, ToolkitSummary]:
    groups: dict[str, list[RowResult]] = {}
    for result in results:
        groups.setdefault(result.row.toolkit or "", []).append(result)
    if set(groups) <= {""}:
        return {}
    return {
        name or "(no toolkit)": ToolkitSummary(len(rows), _pass_at(rows, 1, PASSES), _pass_at(rows, most, PASSES))
        for name, rows in sorted(groups.items())
    }


def _plain(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)
