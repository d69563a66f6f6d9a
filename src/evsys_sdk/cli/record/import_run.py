"""`evsys import`: training runs of another program, in the record of this project."""

from __future__ import annotations

from pathlib import Path

import click

from ..output import emit, json_option


@click.command("import")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="Name of the experiment; by default that of the first folder.")
@click.option("--output-dir", default="outputs", show_default=True, help="Where experiments are recorded.")
@json_option
def import_(folders: tuple[Path, ...], name: str | None, output_dir: str, as_json: bool) -> int:
    """Record run folders of tinker-cookbook as the runs of one experiment.

    A folder holds config.json, metrics.jsonl and checkpoints.jsonl. history, show, compare and the dashboard show the
    runs like any other; their backend is `imported`. Nothing is trained or scored.
    """
    from ...experiment.imported_run import import_cookbook_runs

    result = import_cookbook_runs(folders, name=name or folders[0].resolve().name, output_dir=output_dir)

    def render() -> None:
        for run in result.runs:
            remark = f"; {run.notes.stop_reason}" if run.notes.stop_reason else ""
            found = run.error or f"{run.metrics['steps']:.0f} steps, {len(run.metrics)} metrics{remark}"
            click.echo(click.echo(f"{run.run_id}: {found}"))
        click.echo(f"record: {result.path}")

    emit(result.to_dict(), as_json, render)
    return result.exit_code
