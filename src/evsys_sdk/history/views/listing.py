"""`evsys history` as text: one line per experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...record.view.model import ExperimentView
from ..find import describe_roots
from ..text import TextPage, date_text, score_text

HEADERS = ("id", "started", "status", "verdict", "score", "backend", "best run", "arms", "hypothesis")
_WIDE_ENOUGH = 110
_SHORT_VERDICTS = {"promising_unconfirmed": "promising", "": "-"}


def list_page(views: Sequence[ExperimentView], total: int, roots: Sequence[Path]) -> str:
    """The table of experiments, and the number of those it omits."""
    if not views:
        return explain_nothing(total, roots)
    page, rows = TextPage(), [_cells(view) for view in views]
    if page.width >= _WIDE_ENOUGH:
        page.table(HEADERS, rows, (8, 6))
    else:  # without the claim, which would be cut to a few letters
        narrow = [[row[0], row[1][5:10], *row[2:6], row[7].partition(" ")[0]] for row in rows]
        page.table([*HEADERS[:6], HEADERS[7]], narrow, (0,))
    page.add(*_remarks(views, total))
    return str(page).rstrip("\n")


def explain_nothing(total: int, roots: Sequence[Path]) -> str:
    """The message for an empty list."""
    if total:
        return "No experiment is shown. Raise --limit."
    return (
        f"No experiments found ({describe_roots(roots)}). Run one, name its output_dir with --root, or drop a filter."
    )


def verdict_text(summary: ExperimentView) -> str:
    """The verdict in one word, or INVALIDATED or FLAGGED."""
    if summary.invalidated:
        return "INVALIDATED"
    return "FLAGGED" if summary.flags else _SHORT_VERDICTS.get(summary.verdict, summary.verdict)


def arms_text(summary: ExperimentView) -> str:
    """The number of done, all and failed arms."""
    done = str(summary.n_arms) if summary.n_done == summary.n_arms else f"{summary.n_done}/{summary.n_arms}"
    return done + (f" ({summary.n_failures} failed)" if summary.n_failures else "")


def _cells(view: ExperimentView) -> list[str]:
    return [
        view.id,
        date_text(view.started),
        view.status,
        verdict_text(view),
        score_text(view.best_score),
        ", ".join(view.backends) or "-",
        view.best_run or "-",
        arms_text(view),
        view.hypothesis,
    ]


def _remarks(views: Sequence[ExperimentView], total: int) -> list[str]:
    metrics = {view.metric: None for view in views if view.best_score is not None}
    about = [f"score: {', '.join(list(metrics)[:3])}" + (" ..." if len(metrics) > 3 else "")] if metrics else []
    left = [f"{len(views)} of {total:,} experiments; --limit shows more"] if total > len(views) else []
    return ["", "; ".join([*about, *left])] if about or left else []
