"""`evsys deploy`: ship the weights of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .output import emit, import_option, json_option

if TYPE_CHECKING:
    from ..deploy.deployments import Deployment


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
    from ..deploy.ship import ship
    from ..deploy.source import find_source
    from .params import read_params

    source = find_source(run, checkpoint=checkpoint)
    deployment = ship(
        source,
        kind,
        name=name or default_name(source.detail.summary.name),
        gated=gated,
        params=read_params(params, "--param"),
        folder=Path(out) if out else None,
        despite_audit=despite_audit,
        share=share,
        shadow=shadow,
    )
    emit(deployment.to_dict(), as_json, lambda: _render(deployment))


def default_name(experiment: str) -> str:
    """The name of an experiment as far as it can be that of a deployment."""
    import re

    return re.sub(r"[^A-Za-z0-9_-]+", "-", experiment).strip("-_")[:64] or "model"


def _render(deployment: Deployment) -> None:
    source = deployment.source
    click.echo(
        f"{deployment.id}: {source['arm']} of {source['experiment']}, checkpoint {source['checkpoint']}, "
        f"as {deployment.kind}"
    )
    click.echo(f"  {deployment.location}")
