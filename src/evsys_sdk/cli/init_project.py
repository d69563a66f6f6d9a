"""`evsys init-project`: a research project that works as it is."""

from __future__ import annotations

from pathlib import Path

import click

from .output import emit, json_option


@click.command()
@click.argument("name")
@json_option
def init_project(name: str, as_json: bool) -> None:
    """Write the tree of a research project into the folder NAME ('.' for this one)."""
    from ..scaffold.project import init_project as write_project

    made = write_project(name)
    files = [path.relative_to(made.root).as_posix() for path in made.files]
    emit({"path": str(made.root), "files": files}, as_json, lambda: _render(name, made.root, files))


def _render(name: str, root: Path, files: list[str]) -> None:
    click.echo(f"{root}: a project with {len(files)} files. Next:")
    if root != Path.cwd():
        click.echo(f"  cd {name}")
    click.echo("  evsys new-experiment first")
