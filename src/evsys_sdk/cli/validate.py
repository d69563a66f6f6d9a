"""`evsys validate`: everything that is wrong with a config, before anything is spent."""

from __future__ import annotations

import click

from .output import emit, import_option, json_option


@click.command()
@click.argument("path", type=click.Path())
@click.option("--deep", is_flag=True, help="Also check that every kind exists and that its params fit.")
@json_option
@import_option
def validate(path: str, deep: bool, as_json: bool) -> None:
    """Check the experiment in PATH and report all of its problems at once."""
    from ..config import validate_yaml

    config = validate_yaml(path, deep=deep)
    if deep:
        from ..experiment import Experiment

        Experiment(config).validate()  # what `evsys run` would refuse must not be called OK here
    runs = [run.name for run in config.all_runs()]
    answer = {"ok": True, "path": path, "name": config.name, "deep": deep, "runs": runs}

    def render() -> None:
        plural = "run" if len(runs) == 1 else "runs"
        shown = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
        click.echo(f"{path}: OK. Experiment '{config.name}' has {len(runs)} {plural}: {shown}")
        if not deep:
            click.echo("Kinds and params were not checked; add --deep for that.", err=True)

    emit(answer, as_json, render)
