"""A summary as Markdown, for people; `summary.json` has the same numbers for programs."""

from __future__ import annotations

from collections.abc import Sequence

from .summary import Estimate, EvalSummary

_MOST_FAILURES = 10


def format_summary_markdown(summary: EvalSummary, title: str = "Model evaluation") -> str:
    """The summary as a page: scores, toolkits, what failed, and what to know before believing it."""
    parts = [f"# {title}", _counts(summary), _scores(summary), _toolkits(summary), _failures(summary), _notes(summary)]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(found: Estimate | None) -> str:
    """An estimate in one cell: value, standard error and interval."""
    if found is None:
        return "no score"
    error = "" if found.stderr is None else f" ± {found.stderr:.3f}"
    return f"{found.value:.3f}{error} ({found.low:.3f} to {found.high:.3f})"


def counted(number: int, thing: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _counts(summary: EvalSummary) -> str:
    said = f"{counted(summary.n_rows, 'row')}, {counted(summary.max_attempts, 'attempt')} each"
    said += f"; {counted(summary.n_failed_attempts, 'attempt')} failed."
    return f"Model: `{summary.model}`. {said}" if summary.model else said


def _scores(summary: EvalSummary) -> str:
    rows = [(f"pass@{k}", found) for k, found in summary.pass_at.items()]
    rows += [(f"pass@{k}, secondary counted", found) for k, found in summary.pass_at_with_secondary.items()]
    kinds = [kind for kind in summary.rates if kind != "secondary" or summary.pass_at_with_secondary]
    rows += [(f"answers: {kind}", summary.rates[kind]) for kind in kinds]
    cells = [(name, shown(found), "0" if found is None else str(found.n_rows)) for name, found in rows]
    return _table(("score", "value ± standard error (95 % interval)", "rows"), cells)


def _toolkits(summary: EvalSummary) -> str:
    if not summary.by_toolkit:
        return ""
    more = summary.max_attempts > 1
    headers = ("toolkit", "rows", "pass@1", *((f"pass@{summary.max_attempts}",) if more else ()))
    cells = [
        (name, str(found.n_rows), shown(found.pass_at_1), *((shown(found.pass_at_k),) if more else ()))
        for name, found in summary.by_toolkit.items()
    ]
    return f"## By toolkit\n\n{_table(headers, cells)}"


def _failures(summary: EvalSummary) -> str:
    report = summary.retry_report
    if not report.total_failures:
        return ""
    lines = [
        f"- {failure.what}, asked {counted(failure.attempts, 'time')}: {' '.join(failure.last_error.split())}"
        for failure in report.failures[:_MOST_FAILURES]
    ]
    rest = report.total_failures - len(lines)
    lines += [f"- and {rest} more"] if rest else []
    listed = "\n".join(lines)
    return f"## Failures\n\nThese questions got no answer. They are in no score.\n\n{listed}"


def _notes(summary: EvalSummary) -> str:
    listed = "\n".join(f"- {note}" for note in summary.notes)
    return f"## Notes\n\n{listed}" if listed else ""


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
