"""Matched answers -> the numbers of a model evaluation, each with its error, and the page that shows them.

Attempts without an answer are counted and left out of every rate. A row that has no answer at all is unscored, and one
with fewer than k answers is left out of pass@k; each value says how many rows it rests on.
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
    """One question and the slug that is right."""

    id: str
    question: str | list[Message]
    target: str
    toolkit: str | None = None


@dataclass(frozen=True, slots=True)
class RowResult:
    """A row and all attempts at it; the `info` of each has the slug `predicted` and its `match` with the target."""

    row: EvalRow
    attempts: tuple[Prediction, ...]

    @property
    def scored(self) -> list[Prediction]:
        """The attempts that have an answer."""
        return [attempt for attempt in self.attempts if not attempt.failed]


@dataclass(frozen=True, slots=True)
class ToolkitSummary:
    """The scores of one toolkit."""

    n_rows: int
    pass_at_1: MetricValue | None
    pass_at_k: MetricValue | None


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """What an evaluation found; a value is None where there is nothing to estimate it from."""

    n_rows: int
    n_attempts: int
    n_failed_attempts: int
    n_unscored_rows: int
    """Rows none of whose attempts has an answer."""
    max_attempts: int
    pass_at: Mapping[int, MetricValue | None]
    """pass@k by k: the chance that at least one of k answers matches exactly or by a verified alias, without bias."""
    pass_at_with_secondary: Mapping[int, MetricValue | None]
    """The same if secondary aliases counted as well; empty without any."""
    rates: Mapping[str, MetricValue | None]
    """Share of answers by how they match: exact, alias, secondary, none; together 1."""
    by_toolkit: Mapping[str, ToolkitSummary]
    """Empty when no row has a toolkit."""
    n_without_prediction: int
    """Answers that name no slug, or several."""
    n_truncated: int
    tokens: int
    """Written by the model, where its client counts them."""
    cost_usd: float | None
    """None where the cost of any answer is not known."""
    retry_report: RetryReport
    """Calls, retries and the failures that remained."""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict[str, MetricValue])
    """Further registered metrics that were asked for."""
    model: str = ""
    notes: tuple[str, ...] = field(default=())
    """What a reader should know before believing the numbers."""

    @property
    def pass_at_1(self) -> MetricValue | None:
        """The chance that one answer is right."""
        return self.pass_at[1]

    @property
    def pass_at_k(self) -> MetricValue | None:
        """The chance that one of `max_attempts` answers is right."""
        return self.pass_at[self.max_attempts]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form that `summary.json` holds."""
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
    """The numbers of scored rows; `secondary` says whether there were secondary aliases to report."""
    most = max_attempts or max((len(result.attempts) for result in results), default=1)
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
    return _mean(rows, [chance_of_any(len(row), sum(one.info["match"] in passes for one in row), k) for row in rows])


def _rate(results: Sequence[RowResult], kind: str) -> MetricValue | None:
    rows = [result.scored for result in results if result.scored]
    return _mean(rows, [statistics.fmean(one.info["match"] == kind for one in row) for row in rows])


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
    """The summary as a page: scores, toolkits, what failed, and what to know before believing it."""
    listed = "\n".join(f"- {note}" for note in summary.notes)
    notes = f"## Notes\n\n{listed}" if listed else ""
    parts = [f"# {title}", _counts(summary), _scores(summary), _toolkits(summary), _failures(summary), notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def pluralise(number: int, thing: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cell(found: MetricValue | None) -> str:
    """A value in one cell: itself, standard error and interval."""
    if found is None:
        return "no score"
    error = "" if found.stderr is None else f" ± {found.stderr:.3f}"
    interval = "" if found.low is None or found.high is None else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{found.value:.3f}{error}{interval}"


def _counts(summary: EvalSummary) -> str:
    said = f"{pluralise(summary.n_rows, 'row')}, {pluralise(summary.max_attempts, 'attempt')} each"
    said += f"; {pluralise(summary.n_failed_attempts, 'attempt')} failed."
    return f"Model: `{summary.model}`. {said}" if summary.model else said


def _scores(summary: EvalSummary) -> str:
    rows = [(f"pass@{k}", found) for k, found in summary.pass_at.items()]
    rows += [(f"pass@{k}, secondary counted", found) for k, found in summary.pass_at_with_secondary.items()]
    kinds = [kind for kind in summary.rates if kind != "secondary" or summary.pass_at_with_secondary]
    rows += [(f"answers: {kind}", summary.rates[kind]) for kind in kinds]
    rows += [(name, found) for name, found in summary.metrics.items() if name not in dict(rows)]
    cells = [(name, _cell(found), "0" if found is None else str(found.n_tasks)) for name, found in rows]
    return _table(("score", "value ± standard error (95 % interval)", "rows"), cells)


def _toolkits(summary: EvalSummary) -> str:
    if not summary.by_toolkit:
        return ""
    more = summary.max_attempts > 1
    headers = ("toolkit", "rows", "pass@1", *((f"pass@{summary.max_attempts}",) if more else ()))
    cells = [
        (name, str(found.n_rows), _cell(found.pass_at_1), *((_cell(found.pass_at_k),) if more else ()))
        for name, found in summary.by_toolkit.items()
    ]
    return f"## By toolkit\n\n{_table(headers, cells)}"


def _failures(summary: EvalSummary) -> str:
    report = summary.retry_report
    if not report.total_failures:
        return ""
    lines = [
        f"- {failure.what}, asked {pluralise(failure.attempts, 'time')}: {' '.join(failure.last_error.split())}"
        for failure in report.failures[:_MOST_FAILURES]
    ]
    rest = report.total_failures - len(lines)
    lines += [f"- and {rest} more"] if rest else []
    listed = "\n".join(lines)
    return f"## Failures\n\nThese questions got no answer. They are in no score.\n\n{listed}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
