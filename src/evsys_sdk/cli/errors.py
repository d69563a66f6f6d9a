"""`evsys errors`: the answers that an arm got wrong."""

from __future__ import annotations

import click

from .output import import_option
from .record_options import answer, format_options, root_option


@click.command()
@click.argument("experiment")
@click.option("--arm", metavar="NAME", help="Of this run or arm; by default of the best one.")
@click.option("--step", type=click.IntRange(min=0), help="After this step; by default after the latest scoring.")
@click.option("--benchmark", metavar="NAME", help="On this benchmark; by default on those that choose among runs.")
@click.option("--search", metavar="TEXT", default="", help="Only where this occurs in prompt, expected or answer.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many to show at most.")
@root_option
@format_options
@import_option
def errors(
    experiment: str,
    arm: str | None,
    step: int | None,
    benchmark: str | None,
    search: str,
    limit: int,
    roots: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Show what EXPERIMENT got wrong: prompt, expected answer and the one that came."""
    from ..history.answers import errors_page, find_errors
    from ..history.detail import read_detail
    from ..history.find import experiment_roots, find_experiment

    detail = read_detail(find_experiment(experiment, experiment_roots(roots)))
    found = find_errors(detail, arm=arm, step=step, benchmark=benchmark, search=search)
    answer(
        lambda: found.to_dict(limit),
        as_json=as_json,
        as_markdown=as_markdown,
        text=lambda: errors_page(found, limit),
        markdown=lambda: errors_page(found, limit, markdown=True),
    )
