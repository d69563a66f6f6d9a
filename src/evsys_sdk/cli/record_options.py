"""What the commands that read the record share: where to look, which experiments, and how to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..user_code import results

if TYPE_CHECKING:
    from ..history.query import Filters


def root_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--root`, as the parameter `roots`."""
    return click.option(
        "--root",
        "roots",
        multiple=True,
        metavar="FOLDER",
        type=click.Path(),
        help="Look for experiments in this output folder instead of all known ones. May be repeated.",
    )(command)


def plot_option[F: Callable[..., Any]](command: F) -> F:
    """Add `--plot`, as the parameter `plot`."""
    return click.option(
        "--plot",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Also draw curves and scores into this .png or .svg file (needs the extra 'plot').",
    )(command)


def filter_options[F: Callable[..., Any]](command: F) -> F:
    """Add the options that `read_filters` reads."""
    options = [
        click.option("--status", "statuses", multiple=True, metavar="STATUS", help=_STATUS_HELP),
        click.option("--verdict", "verdicts", multiple=True, metavar="VERDICT", help=_VERDICT_HELP),
        click.option("--tag", "tags", multiple=True, help="Only with this tag. Of several, all must be there."),
        click.option("--algorithm", help="Only those that use this algorithm."),
        click.option("--model", help="Only those whose model's name has this in it."),
        click.option("--since", metavar="WHEN", help="Only those started since: 2026-01-31, or 12h, 7d, 2w ago."),
        click.option("--metric-above", type=float, help="Only those whose best score is above this."),
        click.option("--search", metavar="TEXT", help="All words must occur in name, hypothesis, notes or conclusion."),
    ]
    for option in reversed(options):  # decorators stand above a function in the order in which the help shows them
        command = option(command)
    return command


_STATUS_HELP = "Only running, killed, completed, failed, interrupted, budget or damaged ones. May be repeated."
_VERDICT_HELP = (
    "Only supported, promising_unconfirmed, inconclusive, refuted or invalid ones, or none. May be repeated."
)


def read_filters(options: dict[str, Any]) -> Filters:
    """The filters that the options of a command ask for."""
    from ..history.query import Filters, check_status, check_verdict, parse_since

    return Filters(
        statuses=[check_status(one) for one in options["statuses"]],
        verdicts=[check_verdict(one) for one in options["verdicts"]],
        tags=options["tags"],
        algorithm=options["algorithm"] or "",
        model=options["model"] or "",
        since=parse_since(options["since"]) if options["since"] else None,
        metric_above=options["metric_above"],
        search=options["search"] or "",
    )


def answer(value: Any, *, as_json: bool, text: Callable[[], str]) -> None:
    """Print a result in the form that was asked for."""
    from ..history.text import printable, printable_json

    # What it takes to make the other form is not spent.
    told = printable_json(_as_json(value() if callable(value) else value)) if as_json else printable(text())
    with results():  # else it is taken for what the project's code prints
        click.echo(told)


def _as_json(value: Any) -> str:
    import json

    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # a record may hold what JSON does not know, and the answer is JSON all the same
        from ..record.jsonable import jsonable

        return json.dumps(jsonable(value), indent=2, ensure_ascii=False)
