"""`evsys export`: the best weights of an experiment in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import click

from .output import emit, json_option
from .record_options import root_option


@click.command()
@click.argument("experiment")
@click.option("-o", "--output", required=True, type=click.Path(), help="Folder to write; it must not be there yet.")
@click.option("--arm", metavar="NAME", help="Of this run or arm; by default of the best one.")
@click.option("--checkpoint", default="best", show_default=True, metavar="NAME", help="best, last, or a step.")
@root_option
@json_option
def export(
    experiment: str, output: str, arm: str | None, checkpoint: str, roots: tuple[str, ...], as_json: bool
) -> None:
    """Write the best adapter or checkpoint of EXPERIMENT to a folder, with a page that says what it is."""
    from ..history.detail import read_detail
    from ..history.export import export_weights
    from ..history.find import experiment_roots, find_experiment

    detail = read_detail(find_experiment(experiment, experiment_roots(roots)))
    found = export_weights(detail, Path(output), arm=arm, checkpoint=checkpoint)

    def render() -> None:
        click.echo(f"{found.folder}: {found.arm} of {found.experiment} after step {found.step}")
        click.echo(f"files: {', '.join(found.files)}")
        for warning in found.warnings:
            click.echo(warning, err=True)

    emit(found.to_dict(), as_json, render)
