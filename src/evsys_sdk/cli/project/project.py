"""`evsys init-project` and `new-experiment`: create a project, and its next experiment;
`skills` and `completion`: install skills for coding agents, and shell completion.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from ..options import import_option, json_option
from ..output import emit, fields

if TYPE_CHECKING:
    from ...scaffold.experiment import NewExperiment


@click.command()
@click.argument("name")
@json_option
def init_project(name: str, as_json: bool) -> None:
    """Create a research project in the folder NAME ('.' for this one)."""
    from ...scaffold.project import init_project as write_project

    project = write_project(name)
    files = [path.relative_to(project.root).as_posix() for path in project.files]
    emit({"path": str(project.root), "files": files}, as_json, lambda: _render_project(name, project.root, files))


def _render_project(name: str, root: Path, files: list[str]) -> None:
    click.echo(f"{root}: a project with {len(files)} files. Next:")
    if root != Path.cwd():
        click.echo(f"  cd {name}")
    click.echo("  evsys new-experiment first")


@click.command()
@click.argument("slug")
@click.option("--from", "parent", metavar="EXPERIMENT", help="Derive it from this experiment: path, id or name.")
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="With --from: change this in its best run.")
@click.option("--claim", default="", show_default=False, help="The hypothesis, a falsifiable sentence.")
@click.option("--dataset", default="", show_default=False, help="Without --from: train on this dataset of the project.")
@click.option("--backend", default="mock", help="Without --from: the training backend.")
@click.option("--model", default="", show_default=False, help="Without --from: the model to train.")
@click.option("--campaign", default="", show_default=False, help="Its campaign.")
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
    """Write experiments/<date>_SLUG/{config.yaml,run.py} in the current project."""
    if parent is None and changes:
        raise click.UsageError("--set changes an earlier experiment. Name it with --from.")
    if parent is not None and (dataset or model or backend != "mock"):
        raise click.UsageError("--dataset, --backend and --model are for a start without --from. Use --set instead.")
    if parent is not None:
        from ...scaffold.experiment import derive_experiment

        experiment = derive_experiment(slug, parent, changes=changes, claim=claim, campaign=campaign)
    else:
        from ...scaffold.experiment import new_experiment as write_experiment

        experiment = write_experiment(
            slug, dataset=dataset, claim=claim, backend=backend, model=model, campaign=campaign
        )
    answer = {"name": experiment.name, "config": str(experiment.config), "script": str(experiment.script)}
    if experiment.parent is not None:
        answer |= {"parent": experiment.parent, "open_question": experiment.open_question}
    emit(answer, as_json, lambda: _render_experiment(experiment))


def _render_experiment(experiment: NewExperiment) -> None:
    from ...history.find import shortest

    config = quote(shortest(experiment.config))
    click.echo(
        f"{config}: experiment '{experiment.name}'" + (f", from {experiment.parent}" if experiment.parent else "")
    )
    if experiment.open_question:
        click.echo(f"Left open: {experiment.open_question}")
    click.echo("Next, after you have read it:")
    for command in (f"validate {config} --deep", f"plan {config}", f"run {config}", "history", "context"):
        click.echo(f"  evsys {command}")


@click.group()
def skills() -> None:
    """List the skills for coding agents, or install them into a project."""


@skills.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the skills that come with this version."""
    from ...scaffold.plugin import list_skills

    skills = list_skills()
    answer = [{"name": skill.name, "description": skill.description, "path": str(skill.path)} for skill in skills]
    rows = [(skill.name, skill.description) for skill in skills]
    emit(answer, as_json, lambda: click.echo(fields(rows, indent=0)))


@skills.command()
@click.option(
    "--agent",
    type=click.Choice(["claude", "codex", "cursor", "any", "plugin"]),
    default="claude",
    help="The coding agent; plugin: a folder to install from; any: the cross-vendor format.",
)
@click.option("--target", type=click.Path(file_okay=False), default=".", help="Root of the project.")
@click.option("--force", is_flag=True, help="Overwrite changed files.")
@json_option
def install(agent: str, target: str, force: bool, as_json: bool) -> None:
    """Install skills, and for agents that support them subagents, hooks and the MCP server, into a project."""
    from ...scaffold.plugin import HOMES, install_skills, record_program

    root = Path(target).resolve()
    written = [path.relative_to(root).as_posix() for path in install_skills(agent, root, force=force)]
    answer = {"agent": agent, "root": str(root), "files": written, "program": record_program()}
    note = HOMES[agent].note.replace("FOLDER", quote(str(root)) if agent == "plugin" else "FOLDER")
    emit({**answer, "note": note}, as_json, lambda: _render_files(root, written, note))


def _render_files(root: Path, written: list[str], note: str) -> None:
    for name in written:
        click.echo(f"  {name}")
    click.echo(f"{root}: {len(written)} files." + ("" if note else " The agent finds them when it is started here."))
    if note:
        click.echo(note)


_WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}
_HOW = {
    "bash": 'eval "$(evsys completion bash)"',
    "zsh": 'eval "$(evsys completion zsh)"',
    "fish": "evsys completion fish | source",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; its first line shows how to install it."""
    from click.shell_completion import get_completion_class

    from ..main import evsys

    completion_class = get_completion_class(shell)
    assert completion_class is not None  # click ships these three
    click.echo(f"# To keep it, add this to {_WHERE[shell]}:  {_HOW[shell]}")
    click.echo(completion_class(evsys, {}, "evsys", "_EVSYS_COMPLETE").source())
