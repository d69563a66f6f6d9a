"""`evsys sync`: what a dashboard has not received yet, from this project or from a folder that was copied here."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .output import emit, json_option


@click.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--again", is_flag=True, help="Ask about every stream, also those that are known to have arrived.")
@json_option
def sync(path: str | None, again: bool, as_json: bool) -> int:
    """Send everything that the dashboard does not have yet; sending twice does no harm.

    PATH is a folder with a mirror (by default EVSYS_LOG_DIR or .evsys), or the folder of a recorded experiment,
    which is then reported whole.
    """
    from ..dashboard.connection import Connection
    from ..dashboard.sync import find_mirror, send_mirror
    from ..record.layout import ExperimentFiles

    connection = Connection.from_environment(offline=False)
    given = Path(path) if path else connection.mirror_dir
    if path and ExperimentFiles(given).config.is_file() and ExperimentFiles(given).journal.is_file():
        return _sync_experiment(given, as_json)
    if not path and not given.is_dir():
        emit({"streams": []}, as_json, lambda: click.echo("Nothing was logged for a dashboard here."))
        return 0
    found = list(send_mirror(connection, find_mirror(given), again=again))

    def render() -> None:
        if not found:
            click.echo("Everything has arrived.")
        for one in found:
            click.echo(
                f"{one.stream}: {one.new} new records, {one.records} in all" + (one.problem and f"; {one.problem}")
            )
            for reason in one.rejected:
                click.echo(f"  put aside: {reason}", err=True)

    emit({"streams": [asdict(one) for one in found]}, as_json, render)
    return 1 if any(one.problem or one.rejected for one in found) else 0


def _sync_experiment(folder: Path, as_json: bool) -> int:
    from ..dashboard.client import DashboardClient
    from ..dashboard.upload import report_experiment
    from ..errors import DashboardClientError

    client = DashboardClient(offline=False)
    try:
        id = report_experiment(client, folder, whole=True)
    finally:
        arrived = client.close(timeout_s=600.0)
    if not arrived:
        raise DashboardClientError(f"{folder}: not everything has arrived. It is in the mirror; run: evsys sync")
    answer: dict[str, Any] = {"experiment": id, "path": str(folder)}
    emit(answer, as_json, lambda: click.echo(f"{folder} is on the dashboard as {id}."))
    return 0
