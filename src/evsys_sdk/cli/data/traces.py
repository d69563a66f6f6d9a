"""`evsys traces`: convert conversations of deployed systems to data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import json_option
from ..output import emit, table

if TYPE_CHECKING:
    from ...loop.traces.reading import ImportReport
    from ...loop.traces.trace import RewardRule


@click.group()
def traces() -> None:
    """Import traces of deployed systems, and convert them to data."""


@traces.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", required=True, help="Store of the traces.")
@click.option("--format", default="auto", help="Format of the files.")
@click.option(
    "--feedback", multiple=True, metavar="NAME[=LOW:HIGH]", help="Feedback that is the reward. May be repeated."
)
@click.option("--most-bad", default=0.01, type=click.FloatRange(0, 1), help="Largest accepted share of bad records.")
@click.option("--keep-personal", is_flag=True, help="Keep e-mail addresses, card numbers and other personal data.")
@json_option
def import_(
    files: tuple[Path, ...],
    name: str,
    format: str,
    feedback: tuple[str, ...],
    most_bad: float,
    keep_personal: bool,
    as_json: bool,
) -> None:
    """Add the traces in FILES to a store, each once, without secrets and personal data."""
    from ...loop.traces.store import import_traces

    report = import_traces(
        name, files, format=format, rules=read_rules(feedback), most_bad=most_bad, keep_personal=keep_personal
    )
    emit(report.to_dict(), as_json, lambda: _render(report))


@traces.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", required=True, help="Store of its traces.")
@click.option(
    "--feedback", multiple=True, metavar="NAME[=LOW:HIGH]", help="Feedback that is the reward. May be repeated."
)
@click.option("--keep-personal", is_flag=True, help="Keep e-mail addresses, card numbers and other personal data.")
@json_option
def feedback(files: tuple[Path, ...], name: str, feedback: tuple[str, ...], keep_personal: bool, as_json: bool) -> int:
    """Join the feedback in FILES to the traces of a store, by the ids of the answers; exits 2 if an id is unknown."""
    from ...loop.traces.feedback_log import import_feedback, show_unknown

    report = import_feedback(name, files, rules=read_rules(feedback), keep_personal=keep_personal)

    def render() -> None:
        click.echo(
            f"{name}: {report.added} pieces of feedback added ({report.changed} changed, {report.late} about traces "
            f"that a round has taken), {report.known} were there already"
        )
        if report.unknown:
            click.echo(f"  unknown    {len(report.unknown)} name no answer: {show_unknown(report)}")
        if report.crowded:
            click.echo(f"  left out   {report.crowded} about answers with the most feedback that is kept")
        for reason, where in report.reasons.items():
            click.echo(f"  bad        {where}: {reason}")

    emit(report.to_dict(), as_json, render)
    return 2 if report.unknown or report.bad or report.crowded else 0


@traces.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the stores of traces."""
    from ...loop.traces.rounds import read_rounds
    from ...loop.traces.store import TraceStore
    from ...paths import workspace_dir

    names = sorted(path.parent.name for path in (workspace_dir() / "traces").glob("*/traces.jsonl"))
    stores: list[dict[str, Any]] = []
    for name in names:
        rounds = read_rounds(name)
        used = sum(round["taken"] for round in rounds)
        stores.append({"name": name, "traces": len(TraceStore(name).ids()), "rounds": len(rounds), "taken": used})
    rows = [(store["name"], store["traces"], store["rounds"], store["traces"] - store["taken"]) for store in stores]
    nothing = "There are no traces yet. Add some with: evsys traces import FILE --name NAME"
    emit(stores, as_json, lambda: click.echo(table(("store", "traces", "rounds", "new"), rows) if rows else nothing))


@traces.command()
@click.argument("name")
@click.option("--share", default=0.2, type=float, help="Share of the newest traces to hold out.")
@click.option("--min-reward", type=float, help="Use only answers with at least this reward.")
@click.option("--verifier", default="exact_match", help="Verifier of the held-out tasks.")
@json_option
def seal(name: str, share: float, min_reward: float | None, verifier: str, as_json: bool) -> None:
    """Split the new traces of NAME by time into a training dataset and a held-out benchmark."""
    from ...loop.traces.rounds import seal_round
    from ...registry import get_verifier

    get_verifier(verifier)  # refuse an unknown verifier before sealing
    sealed = seal_round(name, share=share, min_reward=min_reward, verifier=verifier)

    def render() -> None:
        click.echo(f"round {sealed.number} of {name}: {sealed.taken} new traces")
        click.echo(f"  dataset    {sealed.dataset}  {sealed.rows} rows")
        click.echo(f"  benchmark  {sealed.benchmark}  {sealed.tasks} tasks")
        for reason, count in sealed.left_out.items():
            click.echo(f"  left out   {count}: {reason}")

    emit(sealed.to_dict(), as_json, render)


def read_rules(feedback: tuple[str, ...]) -> list[RewardRule]:
    """The reward rules of the --feedback options."""
    from ...errors import ConfigError
    from ...loop.traces.trace import BadRecord, RewardRule

    try:
        return [RewardRule.parse(rule) for rule in feedback]
    except BadRecord as error:
        raise ConfigError(str(error)) from None


def _render(report: ImportReport) -> None:
    click.echo(
        f"{report.name}: {report.added} traces added, {report.duplicates} were there already, "
        f"{report.with_reward} with a reward ({', '.join(sorted(set(report.formats.values())))})"
    )
    if report.redacted:
        click.echo("  redacted   " + ", ".join(f"{count} {kind}" for kind, count in sorted(report.redacted.items())))
    for reason, where in report.reasons.items():
        click.echo(f"  bad        {where}: {reason}")
