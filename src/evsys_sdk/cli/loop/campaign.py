"""`evsys campaign`: a question, a budget and a rule to stop by, for an agent to work under and a person to read."""

from __future__ import annotations

import json
import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from ...user_code import results
from ..output import emit, import_option, json_option, table

if TYPE_CHECKING:
    from ...loop.campaigns.campaign import Campaign
    from ...loop.campaigns.drive import CampaignStep
    from ...loop.campaigns.policy import CampaignDecision
    from ...loop.campaigns.progress import CampaignProgress


@click.group()
def campaign() -> None:
    """Give agents a question with a budget, and see what became of it."""


@campaign.command()
@click.argument("name")
@click.option("--question", required=True, help="What it is to find out.")
@click.option("--experiments", type=click.IntRange(min=1), help="Most experiments.")
@click.option("--tokens", type=click.IntRange(min=1), help="Most tokens, trained and sampled.")
@click.option("--usd", type=click.FloatRange(min=0, min_open=True), help="Most dollars.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="Most hours of running.")
@click.option("--goal", type=float, help="Stop when a supported experiment has this score.")
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Stop after so many experiments in a row that did not raise the best score.",
)
@click.option("--approve-tokens", type=click.IntRange(min=1), help="Above this, an experiment needs human approval.")
@click.option("--portfolio", type=click.Path(), help="YAML file of strategy families for evsys campaign run.")
@json_option
def new(name: str, as_json: bool, **terms: Any) -> None:
    """Open the campaign NAME. Its terms cannot be changed afterwards."""
    from ...loop.campaigns.campaign import Terms, open_campaign
    from ...loop.campaigns.portfolio import Portfolio

    if terms["portfolio"] is not None:
        Portfolio.load(name, terms["portfolio"])
    made = open_campaign(name, Terms(**terms))
    emit({"name": made.name, "tag": made.tag}, as_json, lambda: _tell_next(made))


@campaign.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the campaigns of this project."""
    from ...loop.campaigns.campaign import load_campaign
    from ...loop.campaigns.progress import measure_progress
    from ...record.project_files.journals import list_campaigns

    found = [(one := load_campaign(name), measure_progress(one)) for name in list_campaigns()]
    answer = [{"name": one.name, "question": one.terms.question, "state": progress.state} for one, progress in found]
    rows = [(one.name, progress.state, len(progress.experiments), one.terms.question) for one, progress in found]
    emit(answer, as_json, lambda: click.echo(table(("campaign", "state", "experiments", "question"), rows)))


@campaign.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show where the campaign NAME stands: state, spend, claims, candidates, approvals."""
    from dataclasses import asdict

    from ...loop.campaigns.campaign import load_campaign
    from ...loop.campaigns.progress import measure_progress

    found = load_campaign(name)
    progress = measure_progress(found)
    answer = {"name": name, "terms": asdict(found.terms), **progress.to_dict()}
    answer |= {
        "candidates": [asdict(one) for one in found.candidates],
        "decisions": [one.to_dict() for one in found.decisions],
        "approvals": [one.to_dict() for one in found.approvals.values()],
    }
    emit(answer, as_json, lambda: _render(found, progress))


@campaign.command("run")
@click.argument("name")
@click.option("--until", metavar="TIME", help="End, confirmed and exported, by 06:00 or 2026-11-17T06:00.")
@click.option("--steps", type=click.IntRange(min=1), help="Make so many steps only.")
@json_option
@import_option
def run_portfolio(name: str, until: str | None, steps: int | None, as_json: bool) -> int:
    """Work through the portfolio of the campaign NAME: probe every family, train the best, confirm, export.

    A killed one goes on where it was. Exits with 3 where the deadline or a budget ended it before the confirmation was
    complete, or where it waits for an approval.
    """
    from ...loop.campaigns.drive import Driver
    from ...observers.alerts import start_watcher
    from ..experiment.run import parse_deadline

    code, out = 0, sys.stdout
    start_watcher()
    with redirect_stdout(sys.stderr):  # what user code prints is not the answer
        for step in Driver(name, until=None if until is None else parse_deadline(until)).steps(steps):
            told = json.dumps(step.to_dict(), ensure_ascii=False) if as_json else _describe_step(step)
            with results():
                click.echo(told, file=out)
            code = 130 if step.stop == "interrupted" else 3 if step.stop or step.over else 0
    return code


@campaign.command("next")
@click.argument("name")
@click.option("--family", help="Make a step with this family the next one, whatever the policy says.")
@click.option("--confirm", is_flag=True, help="Confirm that family on the test set instead of training it further.")
@click.option("--because", default="", help="Why; it is recorded with what the policy would have done.")
@click.option("--by", default="", help="Who decides.")
@json_option
@import_option
def next_(name: str, family: str | None, confirm: bool, because: str, by: str, as_json: bool) -> None:
    """Show the next step of the campaign NAME, with its reason and the forecasts; or decide another one."""
    from ...loop.campaigns.drive import Driver

    if family is None and (confirm or because):
        raise click.UsageError("--confirm and --because go with --family.")
    driver = Driver(name)
    found = driver.next() if family is None else driver.overrule(family, because, confirm=confirm, by=by)
    command = f"evsys campaign run {name} --steps 1"
    emit({**found.to_dict(), "command": command}, as_json, lambda: _render_next(found, command))


@campaign.command()
@click.argument("name")
@click.argument("text")
@click.option("--by", default="", help="Who proposes it.")
@json_option
def propose(name: str, text: str, by: str, as_json: bool) -> None:
    """Add a candidate to the campaign NAME: what to try, and why."""
    from ...loop.campaigns.campaign import propose as add_candidate

    made = add_candidate(name, text, by=by)
    emit({"candidate": made.number}, as_json, lambda: click.echo(f"candidate {made.number} of {name}"))


@campaign.command()
@click.argument("name")
@click.argument("candidate", type=int)
@click.option("--by", required=True, help="Who works on it.")
@click.option("--minutes", type=click.FloatRange(1, 10_080), default=60.0, show_default=True, help="For how long.")
@json_option
def take(name: str, candidate: int, by: str, minutes: float, as_json: bool) -> None:
    """Lease CANDIDATE of the campaign NAME, so that no other agent tries the same meanwhile."""
    from ...loop.campaigns.campaign import take as take_candidate

    one = take_candidate(name, candidate, by=by, minutes=minutes)
    answer = {"candidate": one.number, "text": one.text, "by": by, "until": one.taken_until}
    emit(answer, as_json, lambda: click.echo(f"candidate {one.number} is yours for {minutes:g} minutes: {one.text}"))


@campaign.command()
@click.argument("name")
@click.argument("plan_hash")
@click.option("--by", required=True, help="Who approves.")
@json_option
def approve(name: str, plan_hash: str, by: str, as_json: bool) -> None:
    """Approve the plan PLAN_HASH, as a person: it takes more than the campaign NAME allows by itself."""
    from ...loop.campaigns.campaign import approve as approve_plan

    approve_plan(name, plan_hash, by=by)
    emit({"plan": plan_hash, "by": by}, as_json, lambda: click.echo(f"{plan_hash} may run under {name}."))


@campaign.command()
@click.argument("name")
@click.option("--reason", default="", help="Why it ends.")
@json_option
def close(name: str, reason: str, as_json: bool) -> None:
    """Close the campaign NAME: nothing is started under it any more."""
    from ...loop.campaigns.campaign import close_campaign

    closed = close_campaign(name, reason)
    emit({"name": name, "reason": closed.closed}, as_json, lambda: click.echo(f"{name} is closed: {closed.closed}"))


def _describe_step(step: CampaignStep) -> str:
    outcome = f" -> {step.outcome}" if step.outcome else ""
    return f"{step.action:<8} {step.family:<14} {step.reason}{outcome}"


def _render_next(found: CampaignDecision, command: str) -> None:
    click.secho(f"{found.action} {found.family}".strip(), bold=True)
    click.echo(found.reason)
    rows = [(name, f"{one.mean:.3g}", f"{one.low:.3g} to {one.high:.3g}") for name, one in found.forecasts.items()]
    if rows:
        click.echo(table(("family", "forecast", "90 %"), rows))
    if found.action != "stop":
        click.echo(f"next: {command}", err=True)


def _tell_next(made: Campaign) -> None:
    click.echo(f"campaign '{made.name}': {made.terms.question}")
    if made.terms.portfolio:
        click.echo(f"  evsys campaign run {made.name}")
    click.echo(f"  evsys new-experiment SLUG --campaign {made.name}")
    click.echo(f"  evsys campaign show {made.name}")


def _render(found: Campaign, progress: CampaignProgress) -> None:
    click.secho(f"{found.name}: {progress.state}, {progress.why}", bold=True)
    click.echo(found.terms.question)
    for name, rest in progress.left.items():
        spent = progress.spent[name]
        click.echo(f"{name}: {spent:,.4g} of {spent + rest:,.4g}, {rest:,.4g} left")
    if progress.experiments:
        rows = [
            (
                one.id,
                one.status,
                one.verdict or "-",
                "-" if one.best_score is None else f"{one.best_score:.4g}",
                one.hypothesis,
            )
            for one in progress.experiments
        ]
        click.echo(table(("experiment", "status", "verdict", "score", "claim"), rows))
    if progress.best is not None:
        click.echo(f"best: {progress.best.id}, {progress.best.metric} {progress.best.best_score:.4g}")
    now = time.time()
    for one in found.candidates:
        holder = one.holder(now)
        click.echo(f"candidate {one.number}{f' (taken by {holder})' if holder else ''}: {one.text}")
    for event in found.decisions:
        by = "" if event.text("by") in ("", "policy") else f" (by {event.text('by')})"
        click.echo(f"{event.text('action')} {event.text('family')}{by}: {event.text('reason')}")
    for text in progress.suggestions:
        click.echo(f"suggested: {text}")
    for one in found.approvals.values():
        click.echo(f"{one.state}: {one.subject}{f' by {one.by}' if one.by else ''}")
