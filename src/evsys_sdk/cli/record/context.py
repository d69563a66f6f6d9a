"""`evsys context`: a digest of all experiments for a coding agent."""

from __future__ import annotations

from typing import Any

import click

from ..output import json_option
from ..record_options import filter_options, read_filters, root_option


@click.command()
@click.option(
    "--budget-tokens",
    type=click.IntRange(min=200),
    default=2000,
    show_default=True,
    help="Longest answer, in tokens counted so that no model needs more.",
)
@click.option("--goal", metavar="TEXT", default="", help="What you are working towards, to stand at the top.")
@filter_options
@root_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the result as Markdown.")
@json_option
def context(
    budget_tokens: int, goal: str, roots: tuple[str, ...], as_json: bool, as_markdown: bool, **filters: Any
) -> None:
    """Tell an agent what it needs to know: what was tried, what each change did, what is open, failed or untried."""
    from ...history.context.sections import make_digest
    from ...history.find import experiment_roots
    from ...history.index import HistoryIndex
    from ...history.text import printable, printable_json
    from ...history.views.listing import explain_nothing

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown are two forms of the same answer. Give one of them.")
    folders = experiment_roots(roots)
    with HistoryIndex(folders) as index:
        chosen = read_filters(filters)
        digest = make_digest(index, goal=goal, budget_tokens=budget_tokens, filters=chosen, elsewhere=not roots)
    shown = digest.fit("json" if as_json else "markdown" if as_markdown else "text")
    empty = not any(section.items for section in digest.sections if section.key != "goal")
    if as_json:
        click.echo(printable_json(shown))
    else:
        click.echo(printable(f"{shown}{explain_nothing(0, folders)}" if empty else shown).rstrip("\n"))
