"""`evsys show`, `compare`, `errors`, `export`, `verify` read records; `note`, `invalidate`, `import` write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..options import AT_LEAST_ONE, find_folder, import_option, json_option, plot_option, root_option
from ..output import emit


@click.command()
@click.argument("experiment")
@plot_option
@root_option
@json_option
def show(experiment: str, plot: str | None, roots: tuple[str, ...], as_json: bool) -> None:
    """Show EXPERIMENT (a path, an id, its beginning, or a name): verdict, runs, failures, spend, how to resume."""
    from ...history.detail import read_detail
    from ...history.views.show import show_data, show_page

    detail = read_detail(find_folder(experiment, roots))
    if plot is not None:
        from ...history.views.plots import plot_experiment

        plot_experiment(detail, plot)
    emit(
        lambda: {**show_data(detail), **({"plot": plot} if plot else {})},
        as_json,
        lambda: show_page(detail) + (f"\n- plot: {plot}" if plot else ""),
    )


@click.command()
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT[:RUN] EXPERIMENT[:RUN]...")
@plot_option
@root_option
@json_option
def compare(experiments: tuple[str, ...], plot: str | None, roots: tuple[str, ...], as_json: bool) -> None:
    """Compare runs with the first one: scores task by task, curves, and config differences.

    EXPERIMENT means its best run; EXPERIMENT:RUN names another run.
    """
    from ...history.detail import read_detail
    from ...history.find import experiment_roots, find_run
    from ...history.views.compare import compare_experiments, compare_page, letters

    if not 2 <= len(experiments) <= len(letters()):
        raise click.UsageError(f"Give 2 to {len(letters())} runs to compare (got {len(experiments)}).")
    searched = experiment_roots(roots)
    details = [read_detail(folder, run=run) for folder, run in (find_run(name, searched) for name in experiments)]
    if len({(detail.folder, detail.chosen_run) for detail in details}) < len(details):
        raise click.UsageError("Two of these are the same run. Name different ones: EXPERIMENT or EXPERIMENT:RUN.")
    comparison = compare_experiments(details)
    if plot is not None:
        from ...history.views.plots import plot_comparison

        plot_comparison(comparison, plot)
    emit(
        lambda: {**comparison.to_dict(), **({"plot": plot} if plot else {})},
        as_json,
        lambda: compare_page(comparison) + (f"\nplot: {plot}" if plot else ""),
    )


@click.command()
@click.argument("experiment")
@click.option("--arm", metavar="NAME", help="Run or arm; by default the best one.")
@click.option("--step", type=click.IntRange(min=0), help="Step of the scoring; by default the latest.")
@click.option("--benchmark", metavar="NAME", help="Benchmark; by default those that select among runs.")
@click.option(
    "--search",
    metavar="TEXT",
    default="",
    show_default=False,
    help="Only answers with this text in prompt, expected or answer.",
)
@click.option("--limit", type=AT_LEAST_ONE, default=20, help="Show at most this many.")
@root_option
@json_option
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
) -> None:
    """Show the wrong answers of EXPERIMENT with their prompts and expected answers."""
    from ...history.detail import read_detail
    from ...history.views.answers import errors_page, find_errors

    detail = read_detail(find_folder(experiment, roots))
    report = find_errors(detail, arm=arm, step=step, benchmark=benchmark, search=search)
    emit(
        lambda: report.to_dict(limit),
        as_json,
        lambda: errors_page(report, limit),
    )


@click.command()
@click.argument("experiment")
@click.option("-o", "--output", required=True, type=click.Path(), help="Folder to create; it must not exist.")
@click.option("--arm", metavar="NAME", help="Run or arm; by default the best one.")
@click.option("--checkpoint", default="best", metavar="NAME", help="best, last, or a step.")
@root_option
@json_option
def export(
    experiment: str, output: str, arm: str | None, checkpoint: str, roots: tuple[str, ...], as_json: bool
) -> None:
    """Write the best adapter or checkpoint of EXPERIMENT to a folder, with a page of its facts."""
    from ...history.detail import read_detail
    from ...history.find import experiment_roots
    from ...history.index import HistoryIndex
    from ...history.query import count_trials
    from ...history.views.export import export_weights

    detail = read_detail(find_folder(experiment, roots))
    with HistoryIndex(experiment_roots(roots)) as index:
        trials = count_trials(index)
    exported = export_weights(detail, Path(output), arm=arm, checkpoint=checkpoint, trials=trials)

    def render() -> None:
        click.echo(f"{exported.folder}: {exported.arm} of {exported.experiment} after step {exported.step}")
        click.echo(f"files: {', '.join(exported.files)}")
        for warning in exported.warnings:
            click.echo(warning, err=True)

    emit(exported.to_dict(), as_json, render)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@json_option
def verify(folder: str, as_json: bool) -> int:
    """Check the weights, facts and conclusion in an exported FOLDER against its dossier; exits 2 if one differs."""
    from ...history.views.verify import verify_export

    report = verify_export(Path(folder))

    def render() -> None:
        for problem in report.problems:
            click.echo(problem)
        outcome = "refused" if report.problems else "no issues found"
        click.echo(f"{report.folder}: {report.experiment}: {outcome}. Head of its journal: {report.head}")

    emit(report.to_dict(), as_json, render)
    return 2 if report.problems else 0


@click.command()
@click.argument("experiment")
@click.argument("text")
@click.option("--author", default="", show_default=False, help="Author of the note.")
@root_option
@json_option
def note(experiment: str, text: str, author: str, roots: tuple[str, ...], as_json: bool) -> None:
    """Add TEXT to the record of EXPERIMENT (a path, an id, its beginning, or a name)."""
    from ...history.notes import add_note
    from ...record.events import Kind

    folder = find_folder(experiment, roots)
    event = add_note(folder, text, author=author)
    _emit_event(folder, Kind.NOTE, event, f"noted in the journal of {folder.name}", as_json)


@click.command()
@click.argument("experiment")
@click.option("--reason", default="", show_default=False, help="Reason.")
@click.option("--undo", is_flag=True, help="Reinstate it; --reason is optional.")
@root_option
@json_option
def invalidate(experiment: str, reason: str, undo: bool, roots: tuple[str, ...], as_json: bool) -> None:
    """Exclude EXPERIMENT: it stays in the record and never counts as the best."""
    from ...history import notes
    from ...record.events import Kind

    folder = find_folder(experiment, roots)
    if undo:
        event = notes.reinstate(folder, reason)
        _emit_event(folder, Kind.REINSTATED, event, f"{folder.name} counts again", as_json)
    else:
        event = notes.invalidate(folder, reason)
        message = f"{folder.name} no longer counts; --undo reinstates it"
        _emit_event(folder, Kind.INVALIDATED, event, message, as_json)


def _emit_event(folder: Path, kind: str, event: str, message: str, as_json: bool) -> None:
    value: dict[str, Any] = {"path": str(folder), "event": kind, "event_id": event}
    emit(value, as_json, lambda: message)


@click.command("import")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="Name of the experiment; by default the name of the first folder.")
@click.option("--output-dir", default="outputs", help="Folder of records.")
@json_option
def import_(folders: tuple[Path, ...], name: str | None, output_dir: str, as_json: bool) -> int:
    """Record run folders of tinker-cookbook as the runs of one experiment.

    A folder holds config.json, metrics.jsonl and checkpoints.jsonl. history, show, compare and the dashboard show the
    imported runs; their backend is `imported`. Nothing is trained or scored.
    """
    from ...experiment.imported_run import import_cookbook_runs

    result = import_cookbook_runs(folders, name=name or folders[0].resolve().name, output_dir=output_dir)

    def render() -> None:
        for run in result.runs:
            remark = f"; {run.notes.stop_reason}" if run.notes.stop_reason else ""
            outcome = run.error or f"{run.metrics['steps']:.0f} steps, {len(run.metrics)} metrics{remark}"
            click.echo(f"{run.run_id}: {outcome}")
        click.echo(f"record: {result.path}")

    emit(result.to_dict(), as_json, render)
    return result.exit_code
