"""`evsys gate`, `deploy`, `deployments`: may weights replace those that are live, shipping them, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..output import emit, import_option, json_option, recheck_option, table

if TYPE_CHECKING:
    from ...deploy.deployments import Deployment, Deployments
    from ...deploy.gate import Decision


@click.command()
@click.argument("candidate")
@click.option("--against", "current", required=True, help="A deployment, an experiment or arm, or base.")
@click.option("--policy", required=True, type=click.Path(), help="YAML file that says what must hold.")
@click.option("--checkpoint", default="final", show_default=True, help="final, best, or the name of a checkpoint.")
@json_option
@recheck_option
def gate(candidate: str, current: str, policy: str, checkpoint: str, as_json: bool, imports: tuple[str, ...]) -> None:
    """Judge CANDIDATE, an experiment or EXPERIMENT/ARM, against what is live, by a policy; the decision is recorded.

    Exits with 2 if it is refused. Then evsys deploy --gated ships only what passed.
    """
    from ...deploy.gate import judge
    from ...deploy.policy import load_policy
    from ...deploy.source import find_source

    decision = judge(find_source(candidate, checkpoint=checkpoint), current, load_policy(policy), imports=imports)
    emit(decision.to_dict(), as_json, lambda: _render_decision(decision))
    if not decision.passed:
        click.get_current_context().exit(2)


def _render_decision(decision: Decision) -> None:
    click.secho(decision.sentence, bold=True)
    for check in decision.checks:
        mark, colour = ("✓", "green") if check.state == "ok" else ("✗", "red")
        click.echo(f"  {click.style(mark, fg=colour)} {check.name:<14} {check.reason}")


@click.command()
@click.argument("run")
@click.option("--to", "kind", required=True, metavar="KIND", help="Deployer; evsys list --kind deployer shows all.")
@click.option("--name", help="Name under which it goes live.  [default: the name of the experiment]")
@click.option("--checkpoint", default="final", show_default=True, help="final, best, or the name of a checkpoint.")
@click.option("--out", type=click.Path(), help="Folder to write to.  [default: .evsys/deployments/NAME/NUMBER]")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A param of the deployer. May be repeated.")
@click.option("--gated", is_flag=True, help="Only if the gate let these weights pass against what is live.")
@click.option("--share", type=float, help="Answer this part of the requests first, e.g. 0.05, beside what is live.")
@click.option(
    "--shadow", type=float, help="Answer this part of the requests too, unseen, beside what is live: see docs/gate.md."
)
@click.option("--despite-audit", is_flag=True, help="Ship it although its record does not hold.")
@json_option
@import_option
def deploy(
    run: str,
    kind: str,
    name: str | None,
    checkpoint: str,
    out: str | None,
    params: tuple[str, ...],
    gated: bool,
    share: float | None,
    shadow: float | None,
    despite_audit: bool,
    as_json: bool,
) -> None:
    """Ship the weights of RUN: an experiment (its best run), or one of its arms as EXPERIMENT/ARM.

    What was shipped, from where and with which hashes is recorded; evsys deployments lists it.
    """
    from ...deploy.ship import ship
    from ...deploy.source import find_source
    from ..output import read_params

    source = find_source(run, checkpoint=checkpoint)
    deployment = ship(
        source,
        kind,
        name=name or default_name(source.detail.view.name),
        gated=gated,
        params=read_params(params, "--param"),
        folder=Path(out) if out else None,
        despite_audit=despite_audit,
        share=share,
        shadow=shadow,
    )
    emit(deployment.to_dict(), as_json, lambda: _render_deployment(deployment))


def default_name(experiment: str) -> str:
    """The name of an experiment as far as it can be that of a deployment."""
    import re

    return re.sub(r"[^A-Za-z0-9_-]+", "-", experiment).strip("-_")[:64] or "model"


def _render_deployment(deployment: Deployment) -> None:
    source = deployment.source
    click.echo(
        f"{deployment.id}: {source['arm']} of {source['experiment']}, checkpoint {source['checkpoint']}, "
        f"as {deployment.kind}"
    )
    click.echo(f"  {deployment.location}")
    flags = ", ".join(deployment.flags)
    verdict = source.get("verdict") or "no conclusion"
    click.echo(f"  verdict: {verdict}; {f'FLAGGED: {flags}' if flags else 'no flags'}")


@click.group()
def deployments() -> None:
    """List, show and take back what was shipped."""


@deployments.command("list")
@click.option("--name", help="Only those of this name.")
@json_option
def list_(name: str | None, as_json: bool) -> None:
    """List all deployments, oldest first, and which of them are live."""
    from ...deploy.deployments import Deployments

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
    from ...deploy.deployments import Deployments
    from ...deploy.ship import check_whole
    from ...errors import DataError

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
        from ...loop.live_scores import count_shadow

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
    from ...deploy.ship import roll_back

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
    from ...deploy.policy import load_policy
    from ...deploy.rollout import take_step
    from ...loop.live_scores import TracedScores

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
