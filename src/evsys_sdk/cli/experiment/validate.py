"""`evsys validate`: report all problems of a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import import_option, json_option
from ..output import emit, print_warnings

if TYPE_CHECKING:
    from ...config import ExperimentConfig


@click.command()
@click.argument("path", type=click.Path())
@click.option("--deep", is_flag=True, help="Also check kinds, params, data, models and scores: everything a run needs.")
@json_option
@import_option
def validate(path: str, deep: bool, as_json: bool) -> None:
    """Check the experiment in PATH and report all of its problems at once."""
    config, warnings = _check(path) if deep else _load(path)
    runs = [run.name for run in config.all_runs()]
    answer = {"ok": True, "path": path, "name": config.name, "deep": deep, "runs": runs}
    answer |= {"warnings": warnings} if warnings else {}

    def render() -> None:
        plural = "run" if len(runs) == 1 else "runs"
        shown = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
        click.echo(f"{path}: OK. Experiment '{config.name}' has {len(runs)} {plural}: {shown}")
        print_warnings(warnings)
        if not deep:
            click.echo("Kinds, params and data were not checked; add --deep for that.", err=True)

    emit(answer, as_json, render)


def _check(path: str) -> tuple[ExperimentConfig, list[str]]:
    """The config and its warnings; raises for everything that `evsys run` refuses."""
    from ...experiment.contamination import find_contamination
    from ...experiment.preflight import check_file

    checked = check_file(path)
    return checked.config, [*checked.warnings, *find_contamination(checked.config)[0]]


def _load(path: str) -> tuple[ExperimentConfig, list[str]]:
    from ...config import validate_yaml

    return validate_yaml(path), []
