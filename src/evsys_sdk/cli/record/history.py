"""`evsys history`: the experiments on this machine, filtered, sorted, or as a tree of who was derived from whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..output import json_option
from ..record_options import answer, filter_options, read_filters, root_option

if TYPE_CHECKING:
    from ...history.views.listing import TreeLine


@click.command()
@filter_options
@click.option(
    "--sort",
    type=click.Choice(["newest", "oldest", "score", "spend", "name"]),
    default="newest",
    show_default=True,
    help="In which order.",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many to show at most.")
@click.option("--all", "everything", is_flag=True, help="Show all of them, however many.")
@click.option("--tree", is_flag=True, help="Show each below the experiment it was derived from.")
@root_option
@json_option
def history(
    sort: str,
    limit: int,
    everything: bool,
    tree: bool,
    roots: tuple[str, ...],
    as_json: bool,
    **filters: Any,
) -> None:
    """List the experiments recorded on this machine, the newest first."""
    from ...history.find import experiment_roots
    from ...history.index import HistoryIndex
    from ...history.query import count, count_trials, select
    from ...history.views.listing import TreeLine, list_page, tree_lines

    wanted, folders = read_filters(filters), experiment_roots(roots)
    with HistoryIndex(folders) as index:
        found = select(index, wanted, sort=sort, limit=None if everything else limit)
        total = len(found) if everything or len(found) < limit else count(index, wanted)
        trials = count_trials(index, wanted) if as_json else {}
    lines = tree_lines(found) if tree else [TreeLine(one) for one in found]
    answer(
        lambda: {"total": total, "trials": trials, "experiments": [_as_dict(line, tree) for line in lines]},
        as_json=as_json,
        text=lambda: list_page(lines, total, folders, tree=tree),
    )


def _as_dict(line: TreeLine, tree: bool) -> dict[str, Any]:
    place = {"depth": line.depth, "missing_parent": line.missing_parent, "in_cycle": line.in_cycle} if tree else {}
    return {**line.view.to_dict(), **place}
