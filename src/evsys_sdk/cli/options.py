"""Options that several commands share, and readers of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..history.query import Filters

POSITIVE = click.FloatRange(min=0, min_open=True)
AT_LEAST_ONE = click.IntRange(min=1)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
root_option = click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(),
    help="Look for experiments in this output folder instead of all known ones. May be repeated.",
)
plot_option = click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also draw curves and scores into this .png or .svg file (needs the extra 'plot').",
)
recheck_option = click.option(  # a child process imports them
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Recompute with your own verifiers and metrics: a module name or a .py file. May be repeated.",
)


def _import_code(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    if not ctx.resilient_parsing:
        from ..settings import import_project_code

        import_project_code(value)


import_option = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    callback=_import_code,
    expose_value=False,
    is_eager=True,  # before the other options, in any order
    help="Import your own extensions first: a module name or a .py file. May be repeated.",
)

_STATUSES = "running, killed, completed, failed, interrupted, budget or damaged"
_VERDICTS = "supported, promising_unconfirmed, inconclusive, refuted or invalid"
_FILTERS = (
    click.option("--status", "statuses", multiple=True, help=f"Only {_STATUSES} ones. May be repeated."),
    click.option("--verdict", "verdicts", multiple=True, help=f"Only {_VERDICTS} ones, or none. May be repeated."),
    click.option("--tag", "tags", multiple=True, help="Only with this tag. May be repeated; all must match."),
    click.option("--algorithm", help="Only those that use this algorithm."),
    click.option("--model", help="Only those whose model's name contains this."),
    click.option("--since", metavar="WHEN", help="Only those started since: 2026-01-31, or 12h, 7d, 2w ago."),
    click.option("--metric-above", type=float, help="Only those whose best score is above this."),
    click.option("--search", metavar="TEXT", help="All words must occur in name, hypothesis, notes or conclusion."),
)


def filter_options[F: Callable[..., Any]](command: F) -> F:
    """Add the options that `read_filters` reads."""
    for option in reversed(_FILTERS):  # the help lists decorators from the top
        command = option(command)
    return command


def read_filters(options: dict[str, Any]) -> Filters:
    """The filters from the options of a command."""
    from ..history.query import Filters, check_status, check_verdict, parse_since

    return Filters(
        statuses=[check_status(status) for status in options["statuses"]],
        verdicts=[check_verdict(verdict) for verdict in options["verdicts"]],
        tags=options["tags"],
        algorithm=options["algorithm"] or "",
        model=options["model"] or "",
        since=parse_since(options["since"]) if options["since"] else None,
        metric_above=options["metric_above"],
        search=options["search"] or "",
    )


def find_folder(experiment: str, roots: tuple[str, ...] = ()) -> Path:
    """The folder of an experiment, by its path, its id, the beginning of its id, or its name."""
    from ..history.find import experiment_roots, find_experiment

    return find_experiment(experiment, experiment_roots(roots))


def read_params(pairs: tuple[str, ...], option: str) -> dict[str, Any]:
    """The params of a `KEY=VALUE` option; values are YAML."""
    import yaml

    from ..errors import ConfigError

    params: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{option} takes KEY=VALUE (got {pair!r}).")
        try:
            params[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option} {key}: {value!r} is not a YAML value. Put quotes around a text.") from None
    return params


def read_json(text: str | None, option: str) -> dict[str, Any]:
    """The JSON object of an option; empty without the option."""
    from ..data.jsonl import parse_json
    from ..errors import DataError, show

    parsed = parse_json((text or "{}").encode(), option)
    if not isinstance(parsed, dict):
        raise DataError(f'{option} must be a JSON object, not {show(parsed)}. Write \'{{"key": "value"}}\'.')
    return parsed  # pyright: ignore[reportUnknownVariableType]


def read_key(file: str | None, option: str, variable: str) -> str:
    """The key from a file or an environment variable, because other users can see command lines."""
    import os

    from ..errors import ConfigError

    if file is None:
        return os.environ.get(variable, "").strip()
    try:
        key = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{option} {file} cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    if not key:
        raise ConfigError(f"{option} {file} is empty. Write the key into it.")
    return key
