"""Scores of a model evaluation with their standard errors, and their Markdown page.

Failed attempts are counted and excluded from every rate. A row without any answer is unscored, and a row with fewer
than k answers is excluded from pass@k; each value has the number of rows behind it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...data.types import Message
from ...inference.retry import RetryReport
from ..metric import MetricValue
from ..metrics.passing import chance_of_any
from ..predictions import Prediction
from .slugs import MATCHES, PASSES

_MOST_FAILURES = 10


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One question and its correct slug."""

    id: str
    question: str | list[Message]
    target: str
    toolkit: str | None = None


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row and its attempts; the `info` of each has the slug `predicted` and its `match` with the target."""

    row: EvalRow
    attempts: tuple[Prediction, ...]

    @property
    def scored(self) -> list[Prediction]:
        """The attempts with an answer."""
        return [attempt for attempt in self.attempts if not attempt.failed]


@dataclass(frozen=True, slots=True)
class ToolkitSummary:
    """The scores of one toolkit."""

    n_rows: int
    pass_at_1: MetricValue | None
    pass_at_k: MetricValue | None


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """Scores of an evaluation; a value is None without data to estimate it."""

    n_rows: int
    n_attempts: int
    n_failed_attempts: int
    n_unscored_rows: int
    """Rows without any answer."""
    max_attempts: int
    pass_at: Mapping[int, MetricValue | None]
    """k -> unbiased probability that at least one of k answers matches exactly or by a verified alias."""
    pass_at_with_secondary: Mapping[int, MetricValue | None]
    """The same with secondary aliases counted; empty without secondary aliases."""
    rates: Mapping[str, MetricValue | None]
    """Share of answers by match: exact, alias, secondary, none; sums to 1."""
    by_toolkit: Mapping[str, ToolkitSummary]
    """Empty when no row has a toolkit."""
    n_without_prediction: int
    """Answers with no slug or several."""
    n_truncated: int
    tokens: int
    """Output tokens, if the client counts them."""
    cost_usd: float | None
    """None if the cost of any answer is unknown."""
    retry_report: RetryReport
    """Calls, retries and remaining failures."""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict[str, MetricValue])
    """Additional requested metrics."""
    model: str = ""
    notes: tuple[str, ...] = field(default=())
    """Caveats of the scores."""

    @property
    def pass_at_1(self) -> MetricValue | None:
        """The probability that one answer is correct."""
        return self.pass_at[1]

    @property
    def pass_at_k(self) -> MetricValue | None:
        """The probability that one of `max_attempts` answers is correct."""
        return self.pass_at[self.max_attempts]

    def to_dict(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}


def summarize(
    results: Sequence[RowResult],
    *,
    max_attempts: int | None = None,
    secondary: bool = False,
    retry_report: RetryReport | None = None,
    model: str = "",
    notes: Sequence[str] = (),
) -> EvalSummary:
    """Summarise scored rows; `secondary` says whether secondary aliases exist."""
    most = max_attempts or max((len(result.attempts) for result in results), default=1)
    # 1, 2, 4 ... and the last k: enough for a curve.
    ks = sorted({*(2**power for power in range(most.bit_length())), most})
    answers = [attempt for result in results for attempt in result.scored]
    attempts = sum(len(result.attempts) for result in results)
    costs = [attempt.cost_usd for attempt in answers]
    return EvalSummary(
        n_rows=len(results),
        n_attempts=attempts,
        n_failed_attempts=attempts - len(answers),
        n_unscored_rows=sum(not result.scored for result in results),
        max_attempts=most,
        pass_at={k: _pass_at(results, k, PASSES) for k in ks},
        pass_at_with_secondary={k: _pass_at(results, k, PASSES | {"secondary"}) for k in ks if secondary},
        rates={kind: _rate(results, kind) for kind in MATCHES},
        by_toolkit=_by_toolkit(results, most),
        n_without_prediction=sum(answer.info["predicted"] is None for answer in answers),
        n_truncated=sum(answer.status == "truncated" for answer in answers),
        tokens=sum(answer.output_tokens or 0 for answer in answers),
        cost_usd=math.fsum(cost or 0.0 for cost in costs) if None not in costs else None,
        retry_report=retry_report or RetryReport(),
        model=model,
        notes=tuple(notes),
    )


def _pass_at(results: Sequence[RowResult], k: int, passes: frozenset[str]) -> MetricValue | None:
    rows = [result.scored for result in results if len(result.scored) >= k]
    return _mean(
        rows, [chance_of_any(len(row), sum(answer.info["match"] in passes for answer in row), k) for row in rows]
    )


def _rate(results: Sequence[RowResult], kind: str) -> MetricValue | None:
    rows = [result.scored for result in results if result.scored]
    return _mean(rows, [statistics.fmean(answer.info["match"] == kind for answer in row) for row in rows])


def _mean(rows: Sequence[Sequence[Prediction]], values: Sequence[float]) -> MetricValue | None:
    return MetricValue.of(values, n_samples=sum(map(len, rows))) if rows else None


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


def _plain(value: Any) -> Any:
    if isinstance(value, MetricValue | RetryReport):
        return value.to_dict()
    if isinstance(value, ToolkitSummary):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def format_summary_markdown(summary: EvalSummary, title: str = "Model evaluation") -> str:
    """The summary as Markdown: scores, toolkits, failures and notes."""
    listed = "\n".join(f"- {note}" for note in summary.notes)
    notes = f"## Notes\n\n{listed}" if listed else ""
    parts = [f"# {title}", _counts(summary), _scores(summary), _toolkits(summary), _failures(summary), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def pluralise(number: int, thing: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cell(value: MetricValue | None) -> str:
    """A value with standard error and interval, for one table cell."""
    if value is None:
        return "no score"
    error = "" if value.stderr is None else f" ± {value.stderr:.3f}"
    interval = "" if value.low is None or value.high is None else f" ({value.low:.3f} to {value.high:.3f})"
    return f"{value.value:.3f}{error}{interval}"


def _counts(summary: EvalSummary) -> str:
    counts = f"{pluralise(summary.n_rows, 'row')}, {pluralise(summary.max_attempts, 'attempt')} each"
    counts += f"; {pluralise(summary.n_failed_attempts, 'attempt')} failed."
    return f"Model: `{summary.model}`. {counts}" if summary.model else counts


def _scores(summary: EvalSummary) -> str:
    rows = [(f"pass@{k}", value) for k, value in summary.pass_at.items()]
    rows += [(f"pass@{k}, secondary counted", value) for k, value in summary.pass_at_with_secondary.items()]
    kinds = [kind for kind in summary.rates if kind != "secondary" or summary.pass_at_with_secondary]
    rows += [(f"answers: {kind}", summary.rates[kind]) for kind in kinds]
    rows += [(name, value) for name, value in summary.metrics.items() if name not in dict(rows)]
    cells = [(name, _cell(value), "0" if value is None else str(value.n_tasks)) for name, value in rows]
    return _table(("score", "value ± standard error (95 % interval)", "rows"), cells)


def _toolkits(summary: EvalSummary) -> str:
    if not summary.by_toolkit:
        return ""
    more = summary.max_attempts > 1
    headers = ("toolkit", "rows", "pass@1", *((f"pass@{summary.max_attempts}",) if more else ()))
    cells = [
        (name, str(scores.n_rows), _cell(scores.pass_at_1), *((_cell(scores.pass_at_k),) if more else ()))
        for name, scores in summary.by_toolkit.items()
    ]
    return f"## By toolkit\n\n{_table(headers, cells)}"


def _failures(summary: EvalSummary) -> str:
    report = summary.retry_report
    if not report.total_failures:
        return ""
    lines = [
        f"- {failure.what}, tried {pluralise(failure.attempts, 'time')}: {' '.join(failure.last_error.split())}"
        for failure in report.failures[:_MOST_FAILURES]
    ]
    rest = report.total_failures - len(lines)
    lines += [f"- and {rest} more"] if rest else []
    listed = "\n".join(lines)
    return f"## Failures\n\nThese questions got no answer and are excluded from scores.\n\n{listed}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
