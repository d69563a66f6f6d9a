"""`evsys dataset upload` and `evsys benchmark upload`: rows for everybody who uses the same dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .output import emit, json_option

if TYPE_CHECKING:
    from ..data.workspace.reference import Kind


def upload_verb(kind: Kind) -> click.Command:
    """The verb for one kind."""

    @click.command("upload", help=f"Send a {kind} to the dashboard. REF is an id, NAME, NAME@v2, or a path.")
    @click.argument("ref")
    @click.option("--name", help="What to call it there, when REF is a path.")
    @click.option("--split", help="Its split, when REF is a path.")
    @json_option
    def upload(ref: str, name: str | None, split: str | None, as_json: bool) -> None:
        from pathlib import Path

        from ..dashboard.connection import Connection
        from ..dashboard.remote_data import upload_rows
        from ..data.workspace.reference import content_id
        from ..data.workspace.workspace import Workspace

        connection = Connection.from_environment(offline=False)
        workspace = Workspace()
        if Path(ref).exists():
            rows = workspace.add(kind, ref, name or Path(ref).stem, split=split).rows
        else:
            manifest = workspace.show(kind, ref, rows=0).listing
            pull = workspace.pull_dataset if kind == "dataset" else workspace.pull_benchmark
            rows = pull(id=manifest.id)
        found = upload_rows(connection, kind, rows)
        own = content_id(kind, name=rows.name, version=rows.version, split=rows.split, sha256=rows.manifest.sha256)

        def render() -> None:
            verb = "uploaded" if found["uploaded"] else "already there:"
            click.echo(f"{verb} {kind} {found['name']}@v{found['version']}:{found['split']}, {found['rows']} rows")
            click.echo(f"id: {found['id']}" + ("" if found["id"] == own else f" (here it is {own})"))

        emit(found, as_json, render)

    return upload
