"""`evsys init-project` and `new-experiment`: a research project that works as it is, and its next experiment."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from .output import emit, import_option, json_option

if TYPE_CHECKING:
    from ..scaffold.experiment import NewExperiment


@click.command()
@click.argument("name")
@json_option
def init_project(name: str, as_json: bool) -> None:
    """Write the tree of a research project into the folder NAME ('.' for this one)."""
    from ..scaffold.project import init_project as write_project

    made = write_project(name)
    files = [path.relative_to(made.root).as_posix() for path in made.files]
    emit({"path": str(made.root), "files": files}, as_json, lambda: _render_project(name, made.root, files))


def _render_project(name: str, root: Path, files: list[str]) -> None:
    click.echo(f"{root}: a project with {len(files)} files. Next:")
    if root != Path.cwd():
        click.echo(f"  cd {name}")
    click.echo("  evsys new-experiment first")


@click.command()
@click.argument("slug")
@click.option("--from", "parent", metavar="EXPERIMENT", help="Go on from this one: path, id or name.")
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="With --from: try this in its best run.")
@click.option("--claim", default="", help="The hypothesis, in a sentence that can turn out wrong.")
@click.option("--dataset", default="", help="Without --from: train on this dataset of the project.")
@click.option("--backend", default="mock", show_default=True, help="Without --from: where it is trained.")
@click.option("--model", default="", help="Without --from: the model that is trained.")
@click.option("--campaign", default="", help="The campaign that it belongs to.")
@json_option
@import_option
def new_experiment(
    slug: str,
    parent: str | None,
    changes: tuple[str, ...],
    claim: str,
    dataset: str,
    backend: str,
    model: str,
    campaign: str,
    as_json: bool,
) -> None:
    """Write experiments/<date>_SLUG/{config.yaml,run.py} in the project one is in."""
    if parent is None and changes:
        raise click.UsageError("--set changes an earlier experiment. Name it with --from.")
    if parent is not None and (dataset or model or backend != "mock"):
        raise click.UsageError("--dataset, --backend and --model are for a start without --from. Use --set instead.")
    if parent is not None:
        from ..scaffold.experiment import derive_experiment

        made = derive_experiment(slug, parent, changes=changes, claim=claim, campaign=campaign)
    else:
        from ..scaffold.experiment import new_experiment as write_experiment

        made = write_experiment(slug, dataset=dataset, claim=claim, backend=backend, model=model, campaign=campaign)
    answer = {"name": made.name, "config": str(made.config), "script": str(made.script)}
    if made.parent is not None:
        answer |= {"parent": made.parent, "open_question": made.open_question}
    emit(answer, as_json, lambda: _render(made))


def _render(made: NewExperiment) -> None:
    from ..history.find import shortest

    config = quote(str(shortest(Path(made.config))))
    click.echo(f"{config}: experiment '{made.name}'" + (f", from {made.parent}" if made.parent else ""))
    if made.open_question:
        click.echo(f"Left open: {made.open_question}")
    click.echo("Next, after you have read it:")
    for command in (f"validate {config} --deep", f"plan {config}", f"run {config}", "history", "context"):
        click.echo(f"  evsys {command}")
