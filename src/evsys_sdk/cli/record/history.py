"""`evsys history` and `context`: the experiments on this machine as a list, or as a digest for a coding agent."""

from __future__ import annotations

from typing import Any

import click

from ..options import AT_LEAST_ONE, filter_options, json_option, read_filters, root_option
from ..output import emit


@click.command()
@filter_options
@click.option(
    "--sort",
    type=click.Choice(["newest", "oldest", "score", "spend", "name"]),
    default="newest",
    help="Order.",
)
@click.option("--limit", type=AT_LEAST_ONE, default=20, help="Show at most this many.")
@click.option("--all", "everything", is_flag=True, help="Show all of them.")
@root_option
@json_option
def history(
    sort: str,
    limit: int,
    everything: bool,
    roots: tuple[str, ...],
    as_json: bool,
    **filters: Any,
) -> None:
    """List the experiments on this machine, newest first."""
    from ...history.find import experiment_roots
    from ...history.index import HistoryIndex
    from ...history.query import count, count_trials, select
    from ...history.views.listing import list_page

    query, folders = read_filters(filters), experiment_roots(roots)
    with HistoryIndex(folders) as index:
        views = select(index, query, sort=sort, limit=None if everything else limit)
        total = len(views) if everything or len(views) < limit else count(index, query)
        trials = count_trials(index, query) if as_json else {}
    emit(
        lambda: {"total": total, "trials": trials, "experiments": [view.to_dict() for view in views]},
        as_json,
        lambda: list_page(views, total, folders),
    )


@click.command()
@click.option(
    "--budget-tokens",
    type=click.IntRange(min=200),
    default=2000,
    help="Limit of the answer in tokens; counted conservatively for any model.",
)
@click.option("--goal", metavar="TEXT", default="", show_default=False, help="Your goal, printed at the top.")
@filter_options
@root_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the result as Markdown.")
@json_option
def context(
    budget_tokens: int, goal: str, roots: tuple[str, ...], as_json: bool, as_markdown: bool, **filters: Any
) -> None:
    """Summarise all experiments for an agent: best runs, effects of changes, open questions, failures, gaps."""
    from ...history.context.sections import make_digest
    from ...history.find import experiment_roots
    from ...history.index import HistoryIndex
    from ...history.text import printable_json
    from ...history.views.listing import explain_nothing

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown are two forms of the same answer. Give one of them.")
    folders = experiment_roots(roots)
    with HistoryIndex(folders) as index:
        chosen = read_filters(filters)
        digest = make_digest(index, goal=goal, budget_tokens=budget_tokens, filters=chosen, elsewhere=not roots)
    shown = digest.fit("json" if as_json else "markdown" if as_markdown else "text")
    empty = not any(section.items for section in digest.sections if section.key != "goal")
    page = printable_json(shown) if as_json else f"{shown}{explain_nothing(0, folders) if empty else ''}".rstrip("\n")
    emit(None, False, lambda: page)  # printed as fitted, because another JSON layout could exceed the budget
