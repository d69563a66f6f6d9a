"""`evsys deployments`: what was shipped, what is live, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from .output import emit, json_option, table

if TYPE_CHECKING:
    from ..deploy.deployments import Deployment, Deployments


@click.group()
def deployments() -> None:
    """List, show and take back what was shipped."""


@deployments.command("list")
@click.option("--name", help="Only those of this name.")
@json_option
def list_(name: str | None, as_json: bool) -> None:
    """List all deployments, oldest first, and which of them are live."""
    from ..deploy.deployments import Deployments

    known = Deployments.read()
    chosen = [one for one in known.all if name in (None, one.name)]
    answer = [{**one.to_dict(), "live": known.live.get(one.name) == one.id, **_stage_of(known, one)} for one in chosen]
    emit(answer, as_json, lambda: _list(known, chosen))


@deployments.command()
@click.argument("deployment")
@click.option("--traces", metavar="STORE", help="Say how far its shadow has come, by what evsys serve --traces keeps.")
@json_option
def show(deployment: str, traces: str | None, as_json: bool) -> None:
    """Show DEPLOYMENT, by its id or by the name it is live under, and whether its files are as they were shipped."""
    from ..deploy.deployments import Deployments
    from ..deploy.ship import check_whole
    from ..errors import DataError

    known = Deployments.read()
    found = known.find(deployment)
    try:
        check_whole(found)
        damage = ""
    except DataError as error:
        damage = str(error)
    answer = {**found.to_dict(), "live": known.live.get(found.name) == found.id, "damage": damage or None}
    answer |= _stage_of(known, found)
    if traces is not None:
        from ..loop.live_scores import count_shadow

        answer["shadow_answers"] = count_shadow(traces, found.id).to_dict()
    emit(answer, as_json, lambda: _show(found, answer, _state(known, found)))
    if damage:
        click.get_current_context().exit(2)


@deployments.command()
@click.argument("name")
@click.option("--to", metavar="DEPLOYMENT", help="Go back to this one instead of the one before.")
@click.option("--to-nothing", is_flag=True, help="Take it down where there is none before it.")
@click.option("--reason", default="", help="Why, for the record.")
@json_option
def rollback(name: str, to: str | None, to_nothing: bool, reason: str, as_json: bool) -> None:
    """Give NAME back to the deployment before the live one."""
    from ..deploy.ship import roll_back

    target = roll_back(name, to=to, reason=reason, nothing=to_nothing)
    answer = {"name": name, "live": target.id if target else None, "reason": reason}
    emit(
        answer, as_json, lambda: click.echo(f"{name}: {target.id + ' is live again' if target else 'nothing is live'}")
    )


@deployments.command()
@click.argument("name")
@click.option("--policy", required=True, type=click.Path(), metavar="FILE", help="gate.yaml, with its part rollout.")
@click.option("--traces", "store", required=True, metavar="STORE", help="Imported traces that hold the live scores.")
@json_option
def step(name: str, policy: str, store: str, as_json: bool) -> None:
    """Give what is staged under NAME more requests, or take it back, by its live scores."""
    from ..deploy.policy import load_policy
    from ..deploy.rollout import take_step
    from ..loop.live_scores import TracedScores

    found_policy = load_policy(policy)
    found = take_step(name, found_policy, TracedScores(store, found_policy.rollout.shadow))
    emit(found.to_dict(), as_json, lambda: click.echo(f"{found.action}: {found.reason}"))


def _list(known: Deployments, chosen: list[Deployment]) -> None:
    if not chosen:
        click.echo("Nothing was shipped yet. Ship something with: evsys deploy RUN --to KIND")
        return
    rows = [
        (
            one.id,
            _state(known, one),
            one.kind,
            f"{one.source.get('experiment')}/{one.source.get('arm')}",
            one.gate[:8] or "-",
            _when(one.time),
        )
        for one in chosen
    ]
    click.echo(table(("deployment", "", "kind", "from", "gate", "when"), rows))


def _show(found: Deployment, answer: Mapping[str, Any], state: str) -> None:
    source = found.source
    click.secho(f"{found.id} ({found.kind}){', ' + state if state else ''}", bold=True)
    click.echo(f"  where       {found.location}")
    click.echo(f"  from        {source.get('path')} / {source.get('arm')} / {source.get('checkpoint')}")
    click.echo(f"  base model  {source.get('base_model')}")
    click.echo(f"  verdict     {source.get('summary') or source.get('verdict')}")
    click.echo(f"  gate        {found.gate or 'none was asked for'}")
    for name, value in found.facts.items():
        click.echo(f"  {name:<11} {value}")
    click.echo(f"  files       {len(found.files)}, {answer['damage'] or 'all as they were shipped'}")
    if counts := answer.get("shadow_answers"):
        click.echo(
            f"  shadow      {counts['answered']} requests answered, {counts['failed']} of them without an answer; "
            f"{counts['missed']} it did not get round to"
        )


def _state(known: Deployments, one: Deployment) -> str:
    if known.live.get(one.name) == one.id:
        return "live"
    staged = known.staged.get(one.name)
    return staged.told if staged and staged.deployment == one.id else ""


def _stage_of(known: Deployments, one: Deployment) -> dict[str, float | None]:
    """The share of the requests that it answers, or that it shadows."""
    staged = known.staged.get(one.name)
    share = staged.share if staged and staged.deployment == one.id else None
    is_shadow = bool(staged and staged.is_shadow)
    return {"share": None if is_shadow else share, "shadow": share if is_shadow else None}


def _when(time: float | None) -> str:
    return "" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")
