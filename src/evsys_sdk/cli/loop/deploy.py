"""`evsys gate`, `deploy`, `deployments`: gate weights, deploy them, roll back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...history.text import date_text
from ..options import import_option, json_option, recheck_option
from ..output import emit, fields, table
from .loop import show_checks

if TYPE_CHECKING:
    from ...deploy.deployments import Deployment, Deployments
    from ...deploy.gate import Decision


@click.command()
@click.argument("candidate")
@click.option("--against", "current", required=True, help="A deployment, an experiment or arm, or base.")
@click.option("--policy", required=True, type=click.Path(), help="YAML file of the conditions.")
@click.option("--checkpoint", default="final", help="final, best, or the name of a checkpoint.")
@json_option
@recheck_option
def gate(candidate: str, current: str, policy: str, checkpoint: str, as_json: bool, imports: tuple[str, ...]) -> None:
    """Compare CANDIDATE, an experiment or EXPERIMENT/ARM, with the live weights by a policy, and record the decision.

    Exits with 2 if it is refused. evsys deploy --gated deploys only candidates that passed.
    """
    from ...deploy.gate import judge
    from ...deploy.policy import load_policy
    from ...deploy.source import find_source

    decision = judge(find_source(candidate, checkpoint=checkpoint), current, load_policy(policy), imports=imports)
    emit(decision.to_dict(), as_json, lambda: _render_decision(decision))
    if not decision.passed:
        click.get_current_context().exit(2)


def _render_decision(decision: Decision) -> None:
    click.secho(decision.sentence, bold=True, fg="green" if decision.passed else "red")
    click.echo(show_checks(asdict(check) for check in decision.checks))


@click.command()
@click.argument("run")
@click.option("--to", "kind", required=True, metavar="KIND", help="Deployer; evsys list --kind deployer shows all.")
@click.option("--name", help="Name of the deployment.  [default: the name of the experiment]")
@click.option("--checkpoint", default="final", help="final, best, or the name of a checkpoint.")
@click.option("--out", type=click.Path(), help="Folder to write to.  [default: .evsys/deployments/NAME/NUMBER]")
@click.option("--param", "params", multiple=True, metavar="KEY=VALUE", help="A param of the deployer. May be repeated.")
@click.option("--gated", is_flag=True, help="Require that these weights passed the gate against the live ones.")
@click.option("--despite-audit", is_flag=True, help="Deploy in spite of audit flags.")
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
    despite_audit: bool,
    as_json: bool,
) -> None:
    """Deploy the weights of RUN: an experiment (its best run), or one of its arms as EXPERIMENT/ARM.

    Source and hashes of the deployed files are recorded; evsys deployments lists them.
    """
    from ...deploy.ship import ship
    from ...deploy.source import find_source
    from ..options import read_params

    source = find_source(run, checkpoint=checkpoint)
    deployment = ship(
        source,
        kind,
        name=name or default_name(source.detail.view.name),
        gated=gated,
        params=read_params(params, "--param"),
        folder=Path(out) if out else None,
        despite_audit=despite_audit,
    )
    emit(deployment.to_dict(), as_json, lambda: _render_deployment(deployment))


def default_name(experiment: str) -> str:
    """The name of an experiment as a valid name of a deployment."""
    import re

    return re.sub(r"[^A-Za-z0-9_-]+", "-", experiment).strip("-_")[:64] or "model"


def _render_deployment(deployment: Deployment) -> None:
    source = deployment.source
    click.echo(
        f"{deployment.id}: {source['arm']} of {source['experiment']}, checkpoint {source['checkpoint']}, "
        f"as {deployment.kind}"
    )
    flags = ", ".join(deployment.flags)
    verdict = f"{source.get('verdict') or 'no conclusion'}; {f'FLAGGED: {flags}' if flags else 'no flags'}"
    click.echo(fields([("where", deployment.location), ("verdict", verdict)]))


@click.group()
def deployments() -> None:
    """List, show and roll back deployments."""


@deployments.command("list")
@click.option("--name", help="Only deployments of this name.")
@json_option
def list_(name: str | None, as_json: bool) -> None:
    """List all deployments, oldest first, with their state."""
    from ...deploy.deployments import Deployments

    deployments = Deployments.read()
    chosen = [deployment for deployment in deployments.all if name in (None, deployment.name)]
    answer = [
        {**deployment.to_dict(), "live": deployments.live.get(deployment.name) == deployment.id}
        for deployment in chosen
    ]
    emit(answer, as_json, lambda: _list(deployments, chosen))


@deployments.command()
@click.argument("deployment")
@json_option
def show(deployment: str, as_json: bool) -> None:
    """Show DEPLOYMENT, by its id or its live name, and check the hashes of its files."""
    from ...deploy.deployments import Deployments
    from ...deploy.ship import check_whole
    from ...errors import DataError

    deployments = Deployments.read()
    shipped = deployments.find(deployment)
    try:
        check_whole(shipped)
        damage = ""
    except DataError as error:
        damage = str(error)
    answer = {**shipped.to_dict(), "live": deployments.live.get(shipped.name) == shipped.id, "damage": damage or None}
    emit(answer, as_json, lambda: _show(shipped, answer, _state(deployments, shipped)))
    if damage:
        click.get_current_context().exit(2)


@deployments.command()
@click.argument("name")
@click.option("--to", metavar="DEPLOYMENT", help="Roll back to this deployment instead of the previous one.")
@click.option("--to-nothing", is_flag=True, help="Take it down if there is no previous deployment.")
@click.option("--reason", default="", show_default=False, help="Reason, kept in the record.")
@json_option
def rollback(name: str, to: str | None, to_nothing: bool, reason: str, as_json: bool) -> None:
    """Roll NAME back to the deployment before the live one."""
    from ...deploy.ship import roll_back

    target = roll_back(name, to=to, reason=reason, nothing=to_nothing)
    answer = {"name": name, "live": target.id if target else None, "reason": reason}
    emit(
        answer, as_json, lambda: click.echo(f"{name}: {target.id + ' is live again' if target else 'nothing is live'}")
    )


def _list(deployments: Deployments, chosen: list[Deployment]) -> None:
    if not chosen:
        click.echo("No deployments yet. Make one with: evsys deploy RUN --to KIND")
        return
    rows = [
        (
            deployment.id,
            _state(deployments, deployment),
            deployment.kind,
            f"{deployment.source.get('experiment')}/{deployment.source.get('arm')}",
            deployment.gate[:8] or "-",
            date_text(deployment.time),
        )
        for deployment in chosen
    ]
    click.echo(table(("deployment", "state", "kind", "from", "gate", "when"), rows))


def _show(deployment: Deployment, answer: Mapping[str, Any], state: str) -> None:
    source = deployment.source
    click.secho(f"{deployment.id} ({deployment.kind}){', ' + state if state else ''}", bold=True)
    facts = {
        "where": deployment.location,
        "from": source.get("path"),
        "arm": f"{source.get('arm')}, checkpoint {source.get('checkpoint')}",
        "base_model": source.get("base_model"),
        "verdict": source.get("summary") or source.get("verdict"),
        "gate": deployment.gate or "none",
        **deployment.facts,
        "files": f"{len(deployment.files)}, {answer['damage'] or 'all unchanged'}",
    }
    click.echo(fields(facts.items()))


def _state(deployments: Deployments, deployment: Deployment) -> str:
    return "live" if deployments.live.get(deployment.name) == deployment.id else ""
