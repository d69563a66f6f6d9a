"""`evsys run`: train and score every arm of an experiment."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from .output import emit, import_option, json_option, table

if TYPE_CHECKING:
    from ..config import ExperimentConfig
    from ..experiment import Experiment, ExperimentResult
    from ..protocols import RunResult


@click.command()
@click.argument("path", type=click.Path())
@click.option("--dry", is_flag=True, help="Rehearse on the mock backend for a few steps; nothing is spent.")
@click.option("--steps", type=click.IntRange(min=1), help="Train this many steps instead of what the config says.")
@click.option("--resume", is_flag=True, help="Go on with the latest attempt, also with what failed in it.")
@click.option("--fresh", is_flag=True, help="Start a new attempt, although the latest is not finished.")
@click.option("--detach", is_flag=True, help="Run in the background; see evsys status, attach and cancel.")
@click.option("--plan", "plan_hash", metavar="HASH", help="Run it only if it is still what evsys plan --json planned.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Also write the JSON summary to this file.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@json_option
@import_option
def run(
    path: str,
    dry: bool,
    steps: int | None,
    resume: bool,
    fresh: bool,
    detach: bool,
    plan_hash: str | None,
    output: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run the experiment in PATH: validate, expand, train, score, record, conclude.

    An attempt that was interrupted or killed is taken up again where it stopped.
    """
    from pathlib import Path

    from ..experiment import Experiment
    from ..experiment.preflight import check_file
    from ..files import write_json
    from ..loop.campaigns.campaign import campaign_of

    if resume and fresh:
        raise click.UsageError("--resume goes on with the latest attempt, --fresh starts a new one. Give one of them.")
    checked = check_file(path, rehearsed=dry, adapt=lambda config: _adapted(config, dry=dry, steps=steps))
    config = checked.config
    for warning in checked.warnings:
        click.echo(f"warning: {warning}.", err=True)
    if plan_hash is not None:
        from ..experiment.plan_hash import refuse_other_plan

        refuse_other_plan(config, plan_hash)
    if not dry and campaign_of(config) is not None:
        from ..loop.campaigns.admission import admit

        admit(config)
    if output is not None:  # now, because after hours of training is too late to hear that it cannot be written
        Path(output).parent.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(config, callbacks=[] if quiet else _progress(config), checked=True)
    if detach:
        return _detach(experiment, resume=resume, fresh=fresh, as_json=as_json)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # what user code prints is not the answer
        result = experiment.run(resume=resume, fresh=fresh)
    emit(result.to_dict(), as_json, lambda: _render(result))
    if output is not None:
        write_json(Path(output), result.to_dict())
    return result.exit_code


def _detach(experiment: Experiment, *, resume: bool, fresh: bool, as_json: bool) -> int:
    """Start the same command in the background, on the folder that is made or found here."""
    from ..experiment.background import start_in_background
    from ..record.reader import experiment_id

    folder = experiment.open(resume=resume, fresh=fresh)
    # The folder is there now and not finished, so that the same command takes it up.
    arguments = [one for one in sys.argv[1:] if one not in ("--detach", "--fresh")]
    pid = start_in_background(arguments, folder.path)
    answer = {"path": str(folder.path), "experiment_id": experiment_id(folder.path), "pid": pid}
    emit(answer, as_json, lambda: _render_detached(answer))
    return 0


def _render_detached(answer: dict[str, Any]) -> None:
    from shlex import quote

    click.echo(f"{answer['experiment_id']} runs in the background as process {answer['pid']}.")
    for verb in ("status", "attach", "cancel"):
        click.echo(f"  evsys {verb} {quote(answer['path'])}")


def _adapted(config: ExperimentConfig, *, dry: bool, steps: int | None) -> ExperimentConfig:
    """The config with what the command line overrides."""
    from ..experiment.overrides import rehearsal, with_steps

    if dry:
        return rehearsal(config, steps=steps)
    return with_steps(config, steps) if steps else config


def _progress(config: ExperimentConfig) -> list[type]:
    """The live display, unless the config brings its own."""
    from ..registry import get_callback

    shown = any(spec.kind == "print_progress" for spec in config.callbacks)
    return [] if shown else [get_callback("print_progress")]


def _render(result: ExperimentResult) -> None:
    rows = [(run.run_id, _status(run), _shown(run.metrics)) for run in result.runs]
    click.echo(table(("run", "status", "metrics"), rows))
    click.echo(f"record: {result.path}")
    for run in result.runs:
        problem = run.error or run.notes.unscored
        if problem:
            click.echo(f"{run.run_id}: {problem}", err=True)
    if result.conclusion is not None:
        click.echo(result.conclusion["summary"])
    if result.interrupted:
        click.echo("Interrupted. Run the same command again to go on.", err=True)
    if result.status == "budget":
        click.echo("Stopped by the budget. Raise it in the config and run the same command again to go on.", err=True)


def _status(run: RunResult) -> str:
    if run.notes.stopped_by_search is not None:
        return "stopped by search"
    return f"{run.status}, unscored" if run.notes.unscored is not None else run.status


_SCORES = ("eval/", "val/", "test/", "train_fit/", "retention/", "baseline/")
"""How the names of scores begin."""


def _shown(metrics: dict[str, float]) -> str:
    """The few numbers a person looks for first."""
    wanted = [
        "steps",
        "final_loss",
        *sorted(key for key in metrics if key.startswith(_SCORES) and not key.endswith(("/stderr", "/tasks"))),
    ]
    wanted = [key for key in wanted if "=" not in key]  # a part of a breakdown
    return "  ".join(f"{key}={metrics[key]:.4g}" for key in wanted if key in metrics)
