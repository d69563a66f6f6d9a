"""`evsys mutate`: legal neighbours of a config, for evolution loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..output import emit, import_option, json_option, table

if TYPE_CHECKING:
    from ...experiment.mutation import Child


@click.command()
@click.argument("path", type=click.Path())
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same children.")
@click.option("--n", "count", type=click.IntRange(1, 10_000), default=1, show_default=True, help="How many children.")
@click.option("-o", "--output", type=click.Path(file_okay=False), help="Write each child to a file in this folder.")
@click.option("--only", multiple=True, metavar="PATH", help="Change nothing but this. May be repeated.")
@click.option("--freeze", multiple=True, metavar="PATH", help="Do not change this. May be repeated.")
@json_option
@import_option
def mutate(
    path: str, seed: int, count: int, output: str | None, only: tuple[str, ...], freeze: tuple[str, ...], as_json: bool
) -> None:
    """Propose valid neighbours of the experiment in PATH, from the schemas of what it names."""
    from pathlib import Path

    from ...config.yaml_text import read_yaml_file
    from ...experiment.mutation import propose_from_file

    read_yaml_file(Path(path))  # a file that is missing or no text is refused in one sentence
    children = propose_from_file(path, seed=seed, n=count, only=only, freeze=freeze)
    files = [str(child.write(Path(output))) for child in children] if output else [None] * len(children)
    answer = [{**child.to_dict(), "path": file} for child, file in zip(children, files, strict=True)]
    if len(children) < count:
        click.echo(f"{path} has only {len(children)} different neighbours in reach, not {count}.", err=True)
    emit({"parent": path, "seed": seed, "children": answer}, as_json, lambda: _render(children, files))


def _render(children: list[Child], files: list[str] | list[None]) -> None:
    if any(file is None for file in files):
        click.echo("\n---\n".join(child.text.rstrip("\n") for child in children))
        return
    rows = [
        (file, ", ".join(f"{name.rpartition('.')[2]}: {old} -> {new}" for name, (old, new) in child.changes.items()))
        for child, file in zip(children, files, strict=True)
    ]
    click.echo(table(("file", "changed"), rows))
