"""`evsys campaign`: a question, a budget and a stopping rule for agents."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ...history.text import count_text, duration_text
from ..options import AT_LEAST_ONE, POSITIVE, import_option, json_option
from ..output import emit, emit_line, fit_table, hang, table
from .loop import open_dashboard, report_campaign

if TYPE_CHECKING:
    from ...history.campaigns.campaign import Campaign
    from ...history.campaigns.progress import CampaignProgress
    from ...loop.campaigns.drive import CampaignStep
    from ...loop.campaigns.policy import CampaignDecision


@click.group()
def campaign() -> None:
    """Run campaigns: a question, a budget and a stopping rule for agents."""


@campaign.command()
@click.argument("name")
@click.option("--question", required=True, help="Question to answer.")
@click.option("--experiments", type=AT_LEAST_ONE, help="Limit of experiments.")
@click.option("--tokens", type=AT_LEAST_ONE, help="Limit of tokens, trained and sampled.")
@click.option("--usd", type=POSITIVE, help="Limit of dollars.")
@click.option("--hours", type=POSITIVE, help="Limit of run time in hours.")
@click.option("--goal", type=float, help="Stop when a supported experiment has this score.")
@click.option(
    "--patience",
    type=AT_LEAST_ONE,
    default=3,
    help="Stop after this many experiments in a row without a better best score.",
)
@click.option("--approve-tokens", type=AT_LEAST_ONE, help="Above this, an experiment needs human approval.")
@click.option("--portfolio", type=click.Path(), help="YAML file of strategy families for evsys campaign run.")
@json_option
def new(name: str, as_json: bool, **terms: Any) -> None:
    """Open the campaign NAME. Its terms cannot be changed afterwards."""
    from ...history.campaigns.campaign import Terms, open_campaign
    from ...loop.campaigns.portfolio import Portfolio

    if terms["portfolio"] is not None:
        Portfolio.load(name, terms["portfolio"])
    campaign = open_campaign(name, Terms(**terms))
    report_campaign(name)
    emit({"name": campaign.name, "tag": campaign.tag}, as_json, lambda: _render_commands(campaign))


@campaign.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the campaigns of this project."""
    from ...history.campaigns.campaign import load_campaign
    from ...history.campaigns.progress import measure_progress
    from ...record.project_files.journals import list_campaigns

    campaigns = [(campaign := load_campaign(name), measure_progress(campaign)) for name in list_campaigns()]
    answer = [
        {"name": campaign.name, "question": campaign.terms.question, "state": progress.state}
        for campaign, progress in campaigns
    ]
    rows = [
        (campaign.name, progress.state, len(progress.experiments), campaign.terms.question)
        for campaign, progress in campaigns
    ]
    shown = fit_table(("campaign", "state", "experiments", "question"), rows, whole=("campaign",))
    emit(
        answer, as_json, lambda: click.echo(shown if rows else "No campaigns here. Start one with: evsys campaign new")
    )


@campaign.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show where the campaign NAME stands.

    That is its state, spend, claims, candidates, decisions and approvals.
    """
    from ...history.campaigns.campaign import load_campaign
    from ...history.campaigns.progress import measure_progress
    from ...loop.page import describe_campaign

    campaign = load_campaign(name)
    progress = measure_progress(campaign)
    emit(describe_campaign(name), as_json, lambda: _render(campaign, progress))


@campaign.command("run")
@click.argument("name")
@click.option("--until", metavar="TIME", help="End, confirmed and exported, by 06:00 or 2026-11-17T06:00.")
@click.option("--steps", type=AT_LEAST_ONE, help="Stop after this many steps.")
@json_option
@import_option
def run_portfolio(name: str, until: str | None, steps: int | None, as_json: bool) -> int:
    """Work through the portfolio of the campaign NAME.

    Probes every family, trains the best, confirms it on the test set and exports it. A killed one continues where it
    stopped. Exits with 3 if a deadline or budget ended it before the confirmation was complete, or if it waits for an
    approval.
    """
    from ...loop.campaigns.drive import Driver
    from ...loop.page import describe_campaign
    from ...observers.alerts import start_watcher
    from ..experiment.run import parse_deadline

    code = 0
    start_watcher()
    with open_dashboard(f"campaign:{name}", lambda: describe_campaign(name)) as report:
        report()
        for step in Driver(name, until=None if until is None else parse_deadline(until)).steps(steps):
            emit_line(step.to_dict(), as_json, _describe_step(step))
            report()
            code = 130 if step.stop == "interrupted" else 3 if step.stop or step.over else 0
    return code


@campaign.command("next")
@click.argument("name")
@click.option("--family", help="Choose this family for the next step instead of the policy's choice.")
@click.option("--confirm", is_flag=True, help="Confirm that family on the test set instead of training it further.")
@click.option("--because", default="", show_default=False, help="Reason, recorded with the choice of the policy.")
@click.option("--by", default="", show_default=False, help="Who decides.")
@json_option
@import_option
def next_(name: str, family: str | None, confirm: bool, because: str, by: str, as_json: bool) -> None:
    """Show the next step of the campaign NAME, or decide another.

    The step comes with its reason and the forecasts of all families.
    """
    from ...loop.campaigns.drive import Driver

    if family is None and (confirm or because):
        raise click.UsageError("--confirm and --because go with --family.")
    driver = Driver(name)
    decision = driver.next() if family is None else driver.overrule(family, because, confirm=confirm, by=by)
    command = f"evsys campaign run {name} --steps 1"
    emit({**decision.to_dict(), "command": command}, as_json, lambda: _render_next(decision, command))


@campaign.command()
@click.argument("name")
@click.argument("text")
@click.option("--by", default="", show_default=False, help="Who proposes it.")
@json_option
def propose(name: str, text: str, by: str, as_json: bool) -> None:
    """Add a candidate to the campaign NAME: what to try, and why."""
    from ...history.campaigns.campaign import propose as add_candidate

    candidate = add_candidate(name, text, by=by)
    report_campaign(name)
    emit({"candidate": candidate.number}, as_json, lambda: click.echo(f"candidate {candidate.number} of {name}"))


@campaign.command()
@click.argument("name")
@click.argument("candidate", type=int)
@click.option("--by", required=True, help="Who works on it.")
@click.option("--minutes", type=click.FloatRange(1, 10_080), default=60.0, help="For how long.")
@json_option
def take(name: str, candidate: int, by: str, minutes: float, as_json: bool) -> None:
    """Lease CANDIDATE of the campaign NAME: no other agent tries it."""
    from ...history.campaigns.campaign import take as take_candidate

    leased = take_candidate(name, candidate, by=by, minutes=minutes)
    report_campaign(name)
    answer = {"candidate": leased.number, "text": leased.text, "by": by, "until": leased.taken_until}
    emit(
        answer,
        as_json,
        lambda: click.echo(f"candidate {leased.number} is yours for {minutes:g} minutes: {leased.text}"),
    )


@campaign.command()
@click.argument("name")
@click.option("--hours", type=POSITIVE, required=True, help="How much later it ends.")
@click.option("--reason", default="", show_default=False, help="Reason, kept in the record.")
@click.option("--by", default="", show_default=False, help="Who extends it.")
@json_option
def extend(name: str, hours: float, reason: str, by: str, as_json: bool) -> None:
    """Move the deadline of the campaign NAME. A running `campaign run` sees it at its next step."""
    from ...history.campaigns.campaign import extend_campaign

    until = extend_campaign(name, hours, by=by, reason=reason)
    report_campaign(name)
    stated = time.strftime("%Y-%m-%d %H:%M", time.localtime(until))
    emit({"name": name, "deadline": until}, as_json, lambda: click.echo(f"{name} ends at {stated}"))


@campaign.command()
@click.argument("name")
@click.option("--reason", default="", show_default=False, help="Why it ends.")
@json_option
def close(name: str, reason: str, as_json: bool) -> None:
    """Close the campaign NAME: nothing is started under it any more."""
    from ...history.campaigns.campaign import close_campaign

    closed = close_campaign(name, reason)
    report_campaign(name)
    emit({"name": name, "reason": closed.closed}, as_json, lambda: click.echo(f"{name} is closed: {closed.closed}"))


def _describe_step(step: CampaignStep) -> str:
    outcome = f" -> {step.outcome}" if step.outcome else ""
    return hang(f"{step.action:<8} {step.family:<14} ", f"{step.reason}{outcome}")


def _render_next(decision: CampaignDecision, command: str) -> None:
    click.secho(f"{decision.action} {decision.family}".strip(), bold=True)
    click.echo(decision.reason)
    rows = [
        (name, f"{prediction.mean:.3g}", f"{prediction.low:.3g} to {prediction.high:.3g}")
        for name, prediction in decision.forecasts.items()
    ]
    if rows:
        click.echo(table(("family", "forecast", "90 %"), rows))
    if decision.action != "stop":
        click.echo(f"next: {command}", err=True)


def _render_commands(campaign: Campaign) -> None:
    click.echo(f"campaign '{campaign.name}': {campaign.terms.question}")
    if campaign.terms.portfolio:
        click.echo(f"  evsys campaign run {campaign.name}")
    click.echo(f"  evsys new-experiment SLUG --campaign {campaign.name}")
    click.echo(f"  evsys campaign show {campaign.name}")


def _amount(limit: str, value: float) -> str:
    if limit == "hours":
        return duration_text(3600 * value)
    return f"{value:,.4g}" if value < 1e4 else count_text(value)


def _render(campaign: Campaign, progress: CampaignProgress) -> None:
    click.secho(f"{campaign.name}: {progress.state}, {progress.why}", bold=True)
    click.echo(campaign.terms.question)
    for name, left in progress.left.items():
        spent = progress.spent[name]
        used, limit, rest = (_amount(name, value) for value in (spent, spent + left, left))
        click.echo(f"{'time' if name == 'hours' else name}: {used} of {limit}, {rest} left")
    if progress.experiments:
        rows = [
            (
                experiment.id,
                experiment.status,
                experiment.verdict or "-",
                "-" if experiment.best_score is None else f"{experiment.best_score:.4g}",
                experiment.hypothesis,
            )
            for experiment in progress.experiments
        ]
        click.echo(table(("experiment", "status", "verdict", "score", "claim"), rows))
    if progress.best is not None:
        click.echo(f"best: {progress.best.id}, {progress.best.metric} {progress.best.best_score:.4g}")
    now = time.time()
    for candidate in campaign.candidates:
        holder = candidate.holder(now)
        click.echo(f"candidate {candidate.number}{f' (taken by {holder})' if holder else ''}: {candidate.text}")
    for event in campaign.decisions:
        by = "" if event.text("by") in ("", "policy") else f" (by {event.text('by')})"
        step = f"{event.text('action')} {event.text('family')}".strip()
        click.echo(f"{step}{by}: {event.text('reason')}")
    for text in progress.suggestions:
        click.echo(f"suggested: {text}")
    for approval in campaign.approvals.values():
        click.echo(f"{approval.state}: {approval.subject}{f' by {approval.by}' if approval.by else ''}")
