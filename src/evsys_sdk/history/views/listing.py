"""`evsys history` as text: one line an experiment."""

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
    """The table, and what it leaves out."""
    if not views:
        return explain_nothing(total, roots)
    page, rows = TextPage(), [_cells(one) for one in views]
    if page.width >= _WIDE_ENOUGH:
        page.table(HEADERS, rows, (8, 6))
    else:  # the claim would be a few letters; the id is what other commands take, so it stays whole if it can
        narrow = [[row[0], row[1][5:10], *row[2:6], row[7].partition(" ")[0]] for row in rows]
        page.table([*HEADERS[:6], HEADERS[7]], narrow, (0,))
    page.add(*_remarks(views, total))
    return str(page).rstrip("\n")


def explain_nothing(total: int, roots: Sequence[Path]) -> str:
    """What to say when there is nothing to list."""
    if total:
        return "No experiment is shown. Raise --limit."
    return (
        f"No experiments found ({describe_roots(roots)}). Run one, name its output_dir with --root, or drop a filter."
    )


def verdict_text(summary: ExperimentView) -> str:
    """The verdict in a word; invalidated and flagged ones have none that counts."""
    if summary.invalidated:
        return "INVALIDATED"
    return "FLAGGED" if summary.flags else _SHORT_VERDICTS.get(summary.verdict, summary.verdict)


def arms_text(summary: ExperimentView) -> str:
    """How many arms are done, of how many, and how many failed."""
    done = str(summary.n_arms) if summary.n_done == summary.n_arms else f"{summary.n_done}/{summary.n_arms}"
    return done + (f" ({summary.n_failures} failed)" if summary.n_failures else "")


def _cells(one: ExperimentView) -> list[str]:
    return [
        one.id,
        date_text(one.started),
        one.status,
        verdict_text(one),
        score_text(one.best_score),
        ", ".join(one.backends) or "-",
        one.best_run or "-",
        arms_text(one),
        one.hypothesis,
    ]


def _remarks(views: Sequence[ExperimentView], total: int) -> list[str]:
    metrics = {one.metric: None for one in views if one.best_score is not None}
    about = [f"score: {', '.join(list(metrics)[:3])}" + (" ..." if len(metrics) > 3 else "")] if metrics else []
    left = [f"{len(views)} of {total:,} experiments; --limit shows more"] if total > len(views) else []
    return ["", "; ".join([*about, *left])] if about or left else []
