"""`evsys run`: train and score every arm of an experiment."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from ...history.text import terminal_width
from ..options import AT_LEAST_ONE, import_option, json_option, quiet_option
from ..output import emit, fields, group_sentences, hang, print_text, print_warnings, table_of_differences

if TYPE_CHECKING:
    from ...config import ExperimentConfig
    from ...experiment import Experiment, ExperimentResult
    from ...protocols import RunResult


@click.command()
@click.argument("path", type=click.Path())
@click.option("--dry", is_flag=True, help="Run a few steps on the mock backend; nothing is spent.")
@click.option("--steps", type=AT_LEAST_ONE, help="Train this many steps instead of those of the config.")
@click.option("--resume", is_flag=True, help="Continue the latest attempt, including arms that failed.")
@click.option("--fresh", is_flag=True, help="Start a new attempt, although the latest is not finished.")
@click.option("--extend", is_flag=True, help="Add missing seeds and runs to the finished latest attempt.")
@click.option("--detach", is_flag=True, help="Run in the background; see evsys status, attach and cancel.")
@click.option("--plan", "plan_hash", metavar="HASH", help="Run only if it still has this hash of evsys plan --json.")
@click.option("--until", metavar="TIME", help="End, scored and concluded, by 06:00 or 2026-11-17T06:00.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Also write the JSON summary to this file.")
@quiet_option
@json_option
@import_option
def run(
    path: str,
    dry: bool,
    steps: int | None,
    resume: bool,
    fresh: bool,
    extend: bool,
    detach: bool,
    plan_hash: str | None,
    until: str | None,
    output: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run the experiment in PATH: validate, expand, train, score, record, conclude.

    An attempt that was interrupted or killed is resumed where it stopped. With --extend, a finished experiment
    gets more seeds (a larger n_repeats) or more runs, and one conclusion over all of them: a further analysis of the
    same claim, which shares its error rate.
    """
    from pathlib import Path

    from ...experiment import Experiment
    from ...experiment.preflight import check_file
    from ...files import write_json
    from ...history.campaigns.campaign import campaign_of

    if resume + fresh + extend > 1:
        raise click.UsageError(
            "--resume continues the latest attempt, --fresh starts a new one, --extend adds to it. Give one of them."
        )
    if extend and dry:
        raise click.UsageError("--extend continues an attempt, and --dry starts a new one. Give one of them.")
    deadline = None if until is None else parse_deadline(until)
    checked = check_file(
        path, dry=dry, adapt=lambda config: _override(config, dry=dry, steps=steps), resumes=resume and not dry
    )
    config = checked.config
    print_warnings(checked.warnings)
    if plan_hash is not None:
        from ...experiment.plan.plan_hash import refuse_other_plan

        refuse_other_plan(config, plan_hash)
    campaign = None if dry else campaign_of(config)
    if campaign is not None:
        from ...loop.campaigns.admission import admit

        admit(config)
    if output is not None:  # before training, to fail early
        Path(output).parent.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(config, checked=True) if quiet else _build_watched(config)
    if detach:
        return _detach(experiment, resume=resume, fresh=fresh, extend=extend, as_json=as_json)
    if not dry:
        from ...observers.alerts import start_watcher

        start_watcher()
    result = experiment.run(resume=resume, fresh=fresh, extend=extend, until=deadline)
    if campaign is not None:
        from ..loop.loop import report_campaign

        report_campaign(campaign)
    emit(result.to_dict() if as_json else {}, as_json, lambda: _render(result, reported=not quiet))
    if not (quiet or as_json):
        _suggest_commands(result)
    if output is not None:
        write_json(Path(output), result.to_dict())
    return result.exit_code


def parse_deadline(value: str) -> float:
    """A time in seconds since the epoch; a time without a date is the next one on this machine's clock.

    A past deadline starts nothing, but an experiment that was started before it is concluded.
    """
    from datetime import datetime, timedelta

    now = datetime.now().astimezone()
    try:
        if "T" in value or " " in value:
            deadline = datetime.fromisoformat(value).astimezone()
        else:
            deadline = datetime.combine(now.date(), datetime.strptime(value, "%H:%M").time()).astimezone()
            deadline += timedelta(days=deadline <= now)
    except ValueError:
        raise click.UsageError(f"--until: '{value}' is no time. Write 06:00, or 2026-11-17T06:00.") from None
    return deadline.timestamp()


def _detach(experiment: Experiment, *, resume: bool, fresh: bool, extend: bool, as_json: bool) -> int:
    """Create or find the folder of the attempt, and start the same command in the background."""
    from ...experiment.jobs.background import start_in_background
    from ...record.reader import experiment_id

    folder = experiment.open(resume=resume, fresh=fresh, extend=extend)
    # The attempt exists now and is unfinished, so the command resumes it.
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--detach", "--fresh")]
    pid = start_in_background(arguments, folder.path)
    answer = {"path": str(folder.path), "experiment_id": experiment_id(folder.path), "pid": pid}
    emit(answer, as_json, lambda: _render_detached(answer))
    return 0


def _render_detached(answer: dict[str, Any]) -> None:
    from shlex import quote

    click.echo(f"{answer['experiment_id']} runs in the background as process {answer['pid']}.")
    for verb in ("status", "attach", "cancel"):
        click.echo(f"  evsys {verb} {quote(answer['path'])}")


def _override(config: ExperimentConfig, *, dry: bool, steps: int | None) -> ExperimentConfig:
    """The config with the overrides of the command line."""
    from ...experiment.arms.overrides import as_dry_run, with_steps

    if dry:
        return as_dry_run(config, steps=steps)
    return with_steps(config, steps) if steps else config


def _build_watched(config: ExperimentConfig) -> Experiment:
    """The experiment with a progress display: a board on a terminal, else lines."""
    from ...experiment import Experiment
    from ...observers.progress.text import is_live_terminal
    from ...registry import get_callback

    has_progress = any(spec.kind == "print_progress" for spec in config.callbacks)
    by_arm = [] if has_progress else [get_callback("print_progress")]
    if is_live_terminal() and not has_progress:
        from ...observers.progress.board import watch_live

        return Experiment(config, watch=watch_live, checked=True)
    if len(Experiment(config).arms) < 2:
        return Experiment(config, callbacks=by_arm, checked=True)
    from ...observers.progress.board import watch_plain

    return Experiment(config, callbacks=by_arm, watch=watch_plain, checked=True)


def _render(result: ExperimentResult, *, reported: bool) -> None:
    """Print the result; with `reported`, errors and findings were printed during the run."""
    from .score_plot import draw_scores

    click.echo(_table(result.runs))
    click.echo(f"record: {result.path}")
    if not reported or len(result.runs) > 1:  # in a long log they may be far above
        _print_by_run((run.run_id, problem) for run in result.runs if (problem := run.error or run.notes.unscored))
    if not reported:
        worked = [run for run in result.runs if not run.error]  # an error contains the finding that caused it
        _print_by_run((run.run_id, finding) for run in worked for finding in run.notes.findings or ())
    if result.conclusion is not None:
        if plot := draw_scores(result.conclusion, width=get_terminal_size().columns):
            click.echo(f"\n{plot}\n")
        print_text(result.conclusion["summary"])
        if steps := result.conclusion.get("next"):
            print_text(f"To do: {steps[0]}")
    if result.interrupted:
        click.echo("Interrupted. Run the same command again to continue.", err=True)
    if result.status == "budget":  # also a time limit
        click.echo("Stopped by the budget. Raise it and run the same command again to continue.", err=True)


def _table(runs: Sequence[RunResult]) -> str:
    """One row per run; a value that all runs share is printed once, below."""
    metrics = [_headline(run) for run in runs]
    names = list(dict.fromkeys(name for shown in metrics for name in shown))
    headers = ("run", "status", *names)
    rows = [
        (run.run_id, _status(run), *(shown.get(name, "") for name in names))
        for run, shown in zip(runs, metrics, strict=True)
    ]
    width = sum(max(len(name), len(value)) + 2 for name, value in zip(headers, rows[0], strict=True)) if rows else 0
    if len(runs) == 1 and width > terminal_width():
        return fields(zip(headers, rows[0], strict=True), indent=0)
    return table_of_differences(headers, rows, shared=names)


def _print_by_run(pairs: Iterable[tuple[str, str]]) -> None:
    for sentence, names in group_sentences(pairs).items():
        print_text(f"{', '.join(names)}: {sentence}", err=True)


def _suggest_commands(result: ExperimentResult) -> None:
    """Print commands that show more, for a first-time user."""
    from shlex import quote

    from ...record.layout import ExperimentFiles

    if result.conclusion is None or result.exit_code:
        return
    page = ExperimentFiles(result.path).conclusion_page
    commands = {
        f"evsys show {quote(result.path.name)}": "scores, checkpoints, and how to continue",
        f"cat {quote(str(page))}": "the whole conclusion",
        "evsys context": "results of all experiments, for the next one",
    }
    if any(name in run.metrics for run in result.runs for name in _ROLLOUT_METRICS):
        commands = {f"evsys rollouts {quote(result.path.name)}": "its training rollouts", **commands}
    longest = max(map(len, commands))
    for command, what in commands.items():
        click.echo(hang(f"next: {command:{longest}}  ", what, err=True), err=True)


def _status(run: RunResult) -> str:
    return f"{run.status}, unscored" if run.notes.unscored is not None else run.status


_SCORES = ("eval/", "val/", "test/", "train_fit/", "retention/", "baseline/")
"""Prefixes of score names."""
_ROLLOUT_METRICS = ("reward/mean", "teacher/reverse_kl")
"""Progress metrics of recipes with rollouts."""
_MEASURES = (*_ROLLOUT_METRICS, "final_loss")
"""Progress metrics of all recipes; the first one that a run has is shown."""


def _headline(run: RunResult) -> dict[str, str]:
    """The main metrics of a run: steps, progress metric and scores."""
    selected = run.notes.selection_metric or ""
    measure = next(
        (name for name in (selected, *_MEASURES) if name in run.metrics and not name.startswith(_SCORES)), ""
    )
    scores = sorted(
        name for name in run.metrics if name.startswith(_SCORES) and not name.endswith(("/stderr", "/tasks"))
    )
    names = ["steps", measure, *(name for name in scores if "=" not in name)]  # without breakdowns
    return {name: f"{run.metrics[name]:.4g}" for name in names if name in run.metrics}
