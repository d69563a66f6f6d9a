"""`evsys status`, `attach`, `approve`, `cancel`, `logs` and `alerts`: experiments that run in other processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...history.find import shortest
from ...history.text import duration_text
from ..options import find_folder, json_option, root_option
from ..output import emit, fit_table, group_sentences, hang

if TYPE_CHECKING:
    from ...experiment.jobs.live_status import ArmStatus, LiveStatus
    from ...history.attention import AttentionItem
    from ...observers.alerts import Delivery


_EXIT_CODES = {"completed": 0, "failed": 2, "budget": 3, "interrupted": 130}


@click.command()
@click.argument("experiment", required=False)
@root_option
@json_option
def status(experiment: str | None, roots: tuple[str, ...], as_json: bool) -> int:
    """Show the status of EXPERIMENT, arm by arm; without it, all that needs attention or is running."""
    from ...experiment.jobs.live_status import experiment_status
    from ...history.attention import read_attention

    if experiment is not None:
        job = experiment_status(_find(experiment, roots))
        emit(job.to_dict(), as_json, lambda: _render(job))
        return 0
    running = [experiment_status(path) for path in _find_running(roots)]
    waiting = read_attention(roots)
    answer = {"needs_you": [item.to_dict() for item in waiting], "running": [job.to_dict() for job in running]}
    emit(answer, as_json, lambda: _render_all(waiting, running))
    return 0


@click.command()
@click.argument("experiment")
@root_option
@json_option
def attach(experiment: str, roots: tuple[str, ...], as_json: bool) -> int:
    """Follow the output of EXPERIMENT until it ends. Ctrl-C stops following, not the experiment."""
    from ...experiment.jobs.background import follow, wait_for_end
    from ...experiment.jobs.live_status import experiment_status
    from ...record.layout import ExperimentFiles

    path = _find(experiment, roots)
    if ExperimentFiles(path).console.exists():
        for line in follow(path):
            click.echo(line, err=True)  # stdout is for the result at the end
    else:
        click.echo("It runs on another terminal, which has its output. Waiting for its end.", err=True)
        wait_for_end(path)
    job = experiment_status(path)
    emit(job.to_dict(), as_json, lambda: _render(job))
    return _EXIT_CODES.get(job.state, 2)


@click.command()
@click.argument("target", required=False)
@click.argument("subject", required=False)
@click.option("--reject", is_flag=True, help="Reject instead; nothing runs.")
@click.option("--reason", default="", show_default=False, help="Reason, kept in the record.")
@click.option("--author", "--by", default="", show_default=False, help="Who decides.")
@root_option
@json_option
def approve(
    target: str | None,
    subject: str | None,
    reject: bool,
    reason: str,
    author: str,
    roots: tuple[str, ...],
    as_json: bool,
) -> None:
    """Approve TARGET: a waiting experiment, campaign:NAME or loop:NAME. Without it, list open requests.

    SUBJECT is needed if several requests are open: the hash of a plan, or the step of a loop.
    """
    from ...history.attention import read_attention
    from ...record.approvals import approval_folder, decide_approval

    if target is None:
        waiting = [item for item in read_attention(roots) if item.kind == "waiting"]
        emit([item.to_dict() for item in waiting], as_json, lambda: _render_attention(waiting))
        return
    path = approval_folder(target) or _find(target, roots)
    event = decide_approval(path, approve=not reject, subject=subject, reason=reason, author=author)
    answer = {"path": str(path), "approved": not reject, "event": event}
    emit(answer, as_json, lambda: click.echo(f"{'rejected' if reject else 'approved'}: {target}"))


@click.command()
@click.argument("experiment")
@click.option("--wait", "patience_s", type=click.FloatRange(min=0), default=60.0, help="Seconds to wait.")
@click.option("--kill", is_flag=True, help="Kill it if it has not stopped by then; it can still be resumed.")
@root_option
@json_option
def cancel(experiment: str, patience_s: float, kill: bool, roots: tuple[str, ...], as_json: bool) -> int:
    """Stop EXPERIMENT after its current steps, with checkpoints."""
    from ...experiment.jobs.background import cancel as cancel_experiment

    path = _find(experiment, roots)
    outcome = cancel_experiment(path, patience_s=patience_s, kill=kill)
    emit({"path": str(path), **outcome}, as_json, lambda: click.echo(_describe_outcome(path, outcome)))
    return 0 if outcome["stopped"] else 2


def _find(reference: str, roots: tuple[str, ...]) -> Path:
    """The folder of an experiment; of several attempts with its name, the running one."""
    attempts = re.compile(rf"{re.escape(reference)}(\.\d+)?")  # a later attempt has a number after the name
    running = [path for path in _find_running(roots) if attempts.fullmatch(path.name)]
    return running[0] if len(running) == 1 else find_folder(reference, roots)


def _find_running(roots: tuple[str, ...]) -> list[Path]:
    """Every running experiment."""
    from ...history.find import experiment_roots
    from ...record.lock import find_owned

    return [path for folder in experiment_roots(roots) for path in find_owned(folder)]


def _render(job: LiveStatus) -> None:
    where = f" by process {job.pid} on {job.host}" if job.state == "running" else ""
    left = f", about {duration_text(job.seconds_left)} left" if job.seconds_left is not None else ""
    done = f", {job.done} of {len(job.arms)} arms done" if len(job.arms) > 1 else ""
    click.echo(f"{shortest(job.path)}: {job.state}{where}{done}{left}")
    metrics = list(dict.fromkeys(name for arm in job.arms for name in (arm.measure, *arm.scores)))
    rows = [_row(arm, metrics) for arm in job.arms]
    click.echo(fit_table(("arm", "state", "step", "left", *metrics), rows))
    reasons = ((arm.arm, text) for arm in job.arms for text in (*([arm.error] if arm.error else []), *arm.findings))
    for reason, arms in group_sentences(reasons).items():
        click.echo(f"{', '.join(arms)}: {reason}")
    if job.state in ("killed", "interrupted", "budget"):
        click.echo("Run the same command again to continue.", err=True)


def _render_attention(waiting: list[AttentionItem]) -> None:
    for item in waiting:
        click.echo(
            hang(
                f"  {item.experiment}: ",
                f"{item.what}{'' if item.what.endswith(('…', '.')) else '.'} Start with: {item.command}",
            )
        )
    if not waiting:
        click.echo("Nothing waits for an approval.")


def _render_all(waiting: list[AttentionItem], running: list[LiveStatus]) -> None:
    if waiting:
        click.echo("Needs you:")
        _render_attention(waiting)
    if not running:
        click.echo("Nothing is running. See what there is with: evsys history")
        return
    rows = [
        (
            shortest(job.path),
            ", ".join(f"{number} {state}" for state, number in job.counts.items()),
            duration_text(job.seconds_left),
            str(job.pid),
        )
        for job in running
    ]
    click.echo(fit_table(("experiment", "arms", "left", "process"), rows))


def _row(arm: ArmStatus, metrics: list[str]) -> tuple[str, ...]:
    steps = "" if arm.step is None else f"{arm.step}/{arm.total_steps}" if arm.total_steps else str(arm.step)
    values = arm.scores | ({} if arm.value is None else {arm.measure: arm.value})
    numbers = (f"{values[name]:.4g}" if name in values else "" for name in metrics)
    return arm.arm, arm.state, steps, duration_text(arm.seconds_left), *numbers


def _describe_outcome(path: Path, outcome: dict[str, Any]) -> str:
    if not outcome["was_running"]:
        return f"{path} is not running."
    if not outcome["stopped"]:
        return f"{path} has not stopped yet: it finishes its steps. Kill it with --kill."
    how = "was killed" if outcome["killed"] else "has stopped, with checkpoints"
    return f"{path} {how}. Run the same command again to continue."


@click.command()
@click.argument("experiment")
@click.option(
    "--arm",
    default="",
    show_default=False,
    help="The arm; by default the first started one. Alone, it implies --metrics.",
)
@click.option("--metrics", is_flag=True, help="The last steps instead of the output.")
@click.option("--rollouts", "split", metavar="SPLIT", help="The last answers: of val, test or training.")
@click.option("--last", type=click.IntRange(1, 1000), default=20, help="Number of lines.")
@root_option
@json_option
def logs(
    experiment: str,
    arm: str,
    metrics: bool,
    split: str | None,
    last: int,
    roots: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the last lines of EXPERIMENT (a path, an id, its beginning, or a name)."""
    from ...record.reader import ExperimentRecord
    from ...record.run_files.logs import last_console, last_metrics, last_rollouts

    if metrics and split is not None:
        raise click.UsageError("--metrics and --rollouts cannot be used together. Run the command once for each.")
    record = ExperimentRecord(find_folder(experiment, roots))
    answer: dict[str, Any] = {"path": str(record.folder), "state": record.status}
    if not metrics and split is None and not arm:
        answer |= {"what": "console", "lines": last_console(record.files, last)}
    else:
        run = _choose_arm(record.runs, arm)
        lines = last_rollouts(run.files, split, last) if split is not None else last_metrics(run.files, last)
        answer |= {"arm": run.name, "what": f"rollouts of {split}" if split is not None else "metrics", "lines": lines}
    emit(answer, as_json, lambda: _render_logs(answer))


def _choose_arm(runs: list[Any], name: str) -> Any:
    from ...errors import DataError, show, suggest

    if not name:
        run = next((run for run in runs if run.starts), None) or next(iter(runs), None)
        if run is None:
            raise DataError("this experiment has no arm yet. See its status with: evsys status")
        return run
    names = {run.name: run for run in runs}
    if name not in names:
        hint = suggest(name, names) or f"Choose one of: {', '.join(list(names)[:5])}."
        raise DataError(f"there is no arm {show(name)}. {hint}")
    return names[name]


def _render_logs(answer: dict[str, Any]) -> None:
    import json

    for line in answer["lines"]:
        if isinstance(line, str):
            click.echo(line)
        elif answer["what"] == "metrics":
            values = ", ".join(f"{name} {_number(value)}" for name, value in line.items() if name != "step")
            click.echo(hang(f"step {line.get('step')}  ", values))
        else:
            click.echo(json.dumps(line, ensure_ascii=False))
    if not answer["lines"] and answer["what"] == "console":
        click.echo("Its output was printed on its terminal; --metrics shows the last steps of an arm.", err=True)
    elif not answer["lines"]:
        click.echo(f"{shortest(answer['path'])} ({answer['state']}) has no {answer['what']}.", err=True)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@click.command()
@click.option("--watch", is_flag=True, help="Continue while anything runs; evsys run starts this in the background.")
@click.option("--test", is_flag=True, help="Send every target a test message.")
@json_option
def alerts(watch: bool, test: bool, as_json: bool) -> int:
    """Send what `evsys status` lists under "Needs you", and was not sent before, to the targets in .evsys/alerts.yaml.

    Exits with 2 if a target did not accept an alert; it is sent again, under the same id, the next time.
    """
    from ...errors import WorkspaceError
    from ...observers.alerts import load_alerts, send_due, send_test, watch_alerts

    if (config := load_alerts()) is None:
        raise WorkspaceError("there is no .evsys/alerts.yaml. Write it like this: alerts: [{webhook: '${NAME}'}]")
    if watch:
        watch_alerts()
        return 0
    deliveries, left = (send_test(config), 0) if test else send_due(config)
    answer = {"deliveries": [delivery.to_dict() for delivery in deliveries], "due": left}
    emit(answer, as_json, lambda: _render_deliveries(deliveries, left))
    return 2 if any(delivery.problem for delivery in deliveries) else 0


def _render_deliveries(deliveries: list[Delivery], left: int) -> None:
    for delivery in deliveries:
        click.echo(
            f"{delivery.target}  {delivery.item.experiment}: {delivery.item.what}: {delivery.problem or 'delivered'}"
        )
    if left:
        click.echo(f"{left} alerts wait for the next attempt or the rate limit.")
    if not deliveries and not left:
        click.echo("Nothing to send.")
