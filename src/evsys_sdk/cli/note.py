"""`evsys note` and `evsys invalidate`: words added to the record of an experiment afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .record_options import answer, format_options, root_option


@click.command()
@click.argument("experiment")
@click.argument("text")
@click.option("--author", default="", help="Who says so.")
@root_option
@format_options
def note(experiment: str, text: str, author: str, roots: tuple[str, ...], as_json: bool, as_markdown: bool) -> None:
    """Add TEXT to the record of EXPERIMENT (a path, an id, its beginning, or a name)."""
    from ..history.notes import add_note
    from ..record.events import Kind

    folder = _folder(experiment, roots)
    event = add_note(folder, text, author=author)
    _tell(folder, Kind.NOTE, event, f"noted in the journal of {_name(folder)}", as_json, as_markdown)


@click.command()
@click.argument("experiment")
@click.option("--reason", default="", help="Why its result must not be believed.")
@click.option("--undo", is_flag=True, help="Take the mark back; --reason may say why.")
@root_option
@format_options
def invalidate(
    experiment: str, reason: str, undo: bool, roots: tuple[str, ...], as_json: bool, as_markdown: bool
) -> None:
    """Mark EXPERIMENT as not to be believed: it stays in the record and never counts as the best."""
    from ..history import notes
    from ..record.events import Kind

    folder = _folder(experiment, roots)
    if undo:
        event = notes.reinstate(folder, reason)
        _tell(folder, Kind.REINSTATED, event, f"{_name(folder)} counts again", as_json, as_markdown)
    else:
        event = notes.invalidate(folder, reason)
        told = f"{_name(folder)} no longer counts; --undo takes that back"
        _tell(folder, Kind.INVALIDATED, event, told, as_json, as_markdown)


def _folder(experiment: str, roots: tuple[str, ...]) -> Path:
    from ..history.find import experiment_roots, find_experiment

    return find_experiment(experiment, experiment_roots(roots))


def _name(folder: Path) -> str:
    return folder.name


def _tell(folder: Path, kind: str, event: str, told: str, as_json: bool, as_markdown: bool) -> None:
    value: dict[str, Any] = {"path": str(folder), "event": kind, "event_id": event}
    answer(value, as_json=as_json, as_markdown=as_markdown, text=lambda: told, markdown=lambda: told)
