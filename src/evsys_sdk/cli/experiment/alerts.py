"""`evsys alerts`: send what needs a person to the webhooks and commands of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..output import emit, json_option

if TYPE_CHECKING:
    from ...observers.alerts import Delivery


@click.command()
@click.option("--watch", is_flag=True, help="Go on while anything runs; evsys run starts this in the background.")
@click.option("--test", is_flag=True, help="Send every target a message that is about nothing.")
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
    made, left = (send_test(config), 0) if test else send_due(config)
    found = {"deliveries": [one.to_dict() for one in made], "due": left}
    emit(found, as_json, lambda: _render(made, left))
    return 2 if any(one.problem for one in made) else 0


def _render(made: list[Delivery], left: int) -> None:
    for one in made:
        click.echo(f"{one.target}  {one.item.experiment}: {one.item.what}: {one.problem or 'delivered'}")
    if left:
        click.echo(f"{left} alerts wait for the next attempt or the rate limit.")
    if not made and not left:
        click.echo("Nothing to send.")
