"""`evsys history` as text: one line an experiment, or a tree by `parent_experiment_id`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...record.view.model import ExperimentView
from ..find import describe_roots
from ..text import TextPage, date_text, is_unicode, score_text

HEADERS = ("id", "started", "status", "verdict", "score", "backend", "best run", "arms", "hypothesis")
_WIDE_ENOUGH = 110
_DEEPEST = 12
"""Beyond this, lines of a tree move no further to the right."""
_SHORT_VERDICTS = {"promising_unconfirmed": "promising", "": "-"}


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One experiment and where it hangs."""

    view: ExperimentView
    depth: int = 0
    missing_parent: str = ""
    """The parent it names, where that is not among the experiments shown."""
    in_cycle: bool = False
    """Whether its ancestors lead back to itself."""


def list_page(lines: Sequence[TreeLine], total: int, roots: Sequence[Path], *, tree: bool = False) -> str:
    """The table, and what it leaves out."""
    if not lines:
        return explain_nothing(total, roots)
    page, rows = TextPage(), [_cells(line, tree=tree) for line in lines]
    if page.width >= _WIDE_ENOUGH:
        page.table(HEADERS, rows, (8, 6))
    else:  # the claim would be a few letters; the id is what other commands take, so it stays whole if it can
        narrow = [[row[0], row[1][:10], *row[2:6], row[7].partition(" ")[0]] for row in rows]
        page.table([*HEADERS[:6], HEADERS[7]], narrow, (0,))
    page.add(*_remarks(lines, total))
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


def _cells(line: TreeLine, *, tree: bool) -> list[str]:
    one = line.view
    name = _branch(line) + one.id if tree else one.id
    return [
        name + (_strangeness(line) if tree else ""),
        date_text(one.started),
        one.status,
        verdict_text(one),
        score_text(one.best_score),
        ", ".join(one.backends) or "-",
        one.best_run or "-",
        arms_text(one),
        one.hypothesis,
    ]


def _branch(line: TreeLine) -> str:
    if not line.depth:
        return ""
    mark = "└ " if is_unicode() else "- "
    # Not spaces: a table takes those at the beginning of a cell away.
    stem = ("·" if is_unicode() else ".") * (2 * (min(line.depth, _DEEPEST) - 1))
    return stem + mark


def _strangeness(line: TreeLine) -> str:
    if line.in_cycle:
        return f" (its ancestors lead back to it: {line.view.parent_id})"
    return f" (child of {line.missing_parent}, not shown)" if line.missing_parent else ""


def _remarks(lines: Sequence[TreeLine], total: int) -> list[str]:
    metrics = {line.view.metric: None for line in lines if line.view.best_score is not None}
    about = [f"score: {', '.join(list(metrics)[:3])}" + (" ..." if len(metrics) > 3 else "")] if metrics else []
    left = [f"{len(lines)} of {total:,} experiments; --limit shows more"] if total > len(lines) else []
    return ["", "; ".join([*about, *left])] if about or left else []


def tree_lines(summaries: Sequence[ExperimentView]) -> list[TreeLine]:
    """Parents before their children, siblings in the order given. Neither cycles nor lost parents lose anybody."""
    parents = _parents(summaries)
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(parents):
        if parent is not None:
            children.setdefault(parent, []).append(index)
    lines: list[TreeLine] = []
    done: set[int] = set()
    starts = [index for index, parent in enumerate(parents) if parent is None]
    # Whoever was not reached from a start is in a cycle or hangs below one; each is then started from itself.
    for start in [*starts, *range(len(summaries))]:
        stack = [(start, 0)]
        while stack:
            index, depth = stack.pop()
            if index in done:
                continue
            done.add(index)
            one, parent = summaries[index], parents[index]
            lost = one.parent_id if parent is None else ""
            lines.append(TreeLine(one, depth, lost, in_cycle=parent is not None and depth == 0))
            stack += [(child, depth + 1) for child in reversed(children.get(index, ()))]
    return lines


def _parents(summaries: Sequence[ExperimentView]) -> list[int | None]:
    """The place of each one's parent, named by id, by folder, or by name (its latest attempt)."""
    # In the order of time, so that of several with one name the latest stays.
    in_time = sorted(enumerate(summaries), key=lambda pair: pair[1].started or 0.0)
    by_id = {one.id: index for index, one in in_time}
    by_folder = {one.folder.name: index for index, one in in_time}
    by_name = {one.name: index for index, one in in_time}
    found: list[int | None] = []
    for index, one in enumerate(summaries):
        named = one.parent_id
        parent = by_id.get(named, by_folder.get(named, by_name.get(named))) if named else None
        found.append(None if parent == index else parent)
    return found
