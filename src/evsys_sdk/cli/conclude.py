"""`evsys conclude`: draw the conclusion of an experiment again from its record, and say whether it still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .output import emit, json_option

if TYPE_CHECKING:
    from pathlib import Path

    from ..experiment.conclusion import Conclusion


@click.command()
@click.argument("experiment")
@click.option("--check", is_flag=True, help="Write nothing; exit with 2 if the stored conclusion does not follow.")
@json_option
def conclude(experiment: str, check: bool, as_json: bool) -> int:
    """Conclude from the record of EXPERIMENT: its folder, id, the beginning of its id, or its name."""
    from ..experiment.conclusion import conclude as draw
    from ..experiment.conclusion import write_conclusion
    from ..experiment.experiment import journal_conclusion
    from ..record.events import Journal

    path = _folder(experiment)
    conclusion = draw(path)
    changed = _find_changes(path, conclusion)
    agrees = None if changed is None else not changed
    write = not check and agrees is not True
    if write:
        written = write_conclusion(path)
        with Journal.of(path) as journal:
            journal_conclusion(journal, path, written)
    answer = {"path": str(path), "agrees": agrees, "changed": changed or [], "written": write}
    emit(answer | {"conclusion": conclusion.to_dict()}, as_json, lambda: _render(path, conclusion, changed, check))
    return 2 if check and agrees is not True else 0


def _folder(experiment: str) -> Path:
    from pathlib import Path

    from ..record.layout import ExperimentFiles

    if ExperimentFiles(Path(experiment)).config.is_file():
        return Path(experiment)
    from ..history.find import find_experiment

    return find_experiment(experiment)


def _find_changes(path: Path, conclusion: Conclusion) -> list[str] | None:
    """Which parts of the stored conclusion do not follow from the record; None where nothing is stored."""
    import json

    from ..record.folders import read_conclusion

    text = read_conclusion(path)
    if text is None:
        return None
    if text == conclusion.to_json():
        return []
    try:
        stored: Any = json.loads(text)
        found = conclusion.to_dict()
        changed = sorted(key for key in {*stored, *found} if stored.get(key) != found.get(key))
    except (ValueError, TypeError, AttributeError):
        return ["the file is damaged"]
    return changed or ["how it is written"]


def _render(path: Path, conclusion: Conclusion, changed: list[str] | None, check: bool) -> None:
    from ..experiment.conclusion.markdown import as_markdown

    click.echo(as_markdown(conclusion).rstrip())
    click.echo(f"\nrecord: {path}")
    if changed is None:
        said = "no conclusion is stored" if check else "conclusion written"
    elif not changed:
        said = "agrees with the stored conclusion"
    else:
        said = f"{'differs from the stored conclusion' if check else 'conclusion rewritten; it differed'} in: "
        said += ", ".join(changed)
    click.echo(f"conclusion: {said}")
