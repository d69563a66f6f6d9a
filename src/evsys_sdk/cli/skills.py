"""`evsys skills`: what coding agents read about this SDK."""

from __future__ import annotations

from pathlib import Path

import click

from .output import emit, json_option, table


@click.group()
def skills() -> None:
    """List the skills for coding agents, or install them into a project."""


@skills.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the skills that come with this version."""
    from ..scaffold.plugin import list_skills

    found = list_skills()
    answer = [{"name": one.name, "description": one.description, "path": str(one.path)} for one in found]
    emit(answer, as_json, lambda: click.echo(table(("skill", "for"), [(one.name, one.description) for one in found])))


@skills.command()
@click.option(
    "--agent",
    type=click.Choice(["claude", "codex", "cursor", "any"]),
    default="claude",
    show_default=True,
    help="Which coding agent reads them; any: a plugin folder of the cross-vendor format.",
)
@click.option("--target", type=click.Path(file_okay=False), default=".", show_default=True, help="Root of the project.")
@click.option("--force", is_flag=True, help="Replace files that were changed.")
@json_option
def install(agent: str, target: str, force: bool, as_json: bool) -> None:
    """Copy skills, and for agents that have them also subagents, hooks and the MCP server, into a project."""
    from ..scaffold.plugin import install_skills

    root = Path(target).resolve()
    written = [path.relative_to(root).as_posix() for path in install_skills(agent, root, force=force)]
    emit({"agent": agent, "root": str(root), "files": written}, as_json, lambda: _render(root, written))


def _render(root: Path, written: list[str]) -> None:
    for name in written:
        click.echo(f"  {name}")
    click.echo(f"{root}: {len(written)} files. The agent finds them when it is started here.")
