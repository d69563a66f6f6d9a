"""Find experiments.

They are in `outputs` here and at the project's root, and in folders listed in `.evsys/`
(`record/project_files/known_folders.py`); `--root` replaces all of them. EXPERIMENT on the command line is a path, an
id, the beginning of an id, or a name (its latest attempt).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DataError, closest, show
from ..paths import WORKSPACE_DIR, project_root
from ..record.layout import DEFAULT_ROOT, OUTPUT_ROOTS, RunFiles
from ..record.project_files.known_folders import read_output_roots

if TYPE_CHECKING:
    from .index import HistoryIndex

_LIST_THEM = "List them with: evsys history"


def find_experiment(reference: str, roots: Sequence[Path] | None = None) -> Path:
    """The folder of an experiment, by path, id, the beginning of its id, or name."""
    if not reference.strip() or "\x00" in reference:
        raise DataError(f"{show(reference)} is not the name of an experiment. {_LIST_THEM}")
    is_path = os.sep in reference or reference in (".", "..") or Path(reference).is_absolute()
    if is_path and (folder := _experiment_folder(Path(reference))):
        return folder
    from .index import HistoryIndex  # imported here, because listing the roots needs no database

    searched = experiment_roots() if roots is None else list(roots)
    with HistoryIndex(searched) as index:
        entries = _list_entries(index)
    if folder := _match_entry(reference, entries):
        return folder
    if folder := _experiment_folder(Path(reference)):
        return folder
    raise DataError(_not_found_message(reference, entries, searched))


def find_run(reference: str, roots: Sequence[Path] | None = None) -> tuple[Path, str]:
    """Folder and run of `EXPERIMENT` or `EXPERIMENT:RUN`; an empty run means the best one."""
    experiment, colon, run = reference.rpartition(":")
    if not colon or not experiment or not run:
        return find_experiment(reference, roots), ""
    try:
        return find_experiment(experiment, roots), run
    except DataError:
        return find_experiment(reference, roots), ""  # a path or a name may contain a colon


class _Entry(NamedTuple):
    id: str
    name: str
    started: float
    path: Path


def _list_entries(index: HistoryIndex) -> list[_Entry]:
    return [
        _Entry(row[0], row[1], row[2] or 0.0, root / row[3])
        for root, rows in index.rows_by_root(("id", "name", "started", "folder"))
        for row in rows
    ]


def _match_entry(reference: str, entries: Sequence[_Entry]) -> Path | None:
    same_id = [entry.path for entry in entries if entry.id == reference]
    if len(same_id) > 1 and not any(entry.name == reference for entry in entries):
        paths = " and ".join(shortest(path) for path in same_id[:3])
        raise DataError(
            f"{show(reference)} is the id of {len(same_id)} folders: {paths}. Name one of them by its path."
        )
    if len(same_id) == 1 and same_id[0].name != reference:
        return same_id[0]
    exact = [entry for entry in entries if entry.path.name == reference]
    # A name is also the folder of its first attempt; it means the latest.
    attempts = [entry for entry in entries if entry.name == reference] or exact
    if attempts:
        return max(attempts, key=lambda entry: (entry.started, str(entry.path))).path
    longer = [entry for entry in entries if entry.id.startswith(reference)]
    if len(longer) == 1:
        return longer[0].path
    if longer:
        ids = sorted(entry.id for entry in longer)
        shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise DataError(f"{show(reference)} is the beginning of {len(ids)} ids: {shown}. Write more of it.")
    return None


def _experiment_folder(path: Path) -> Path | None:
    """`path`, if it is an experiment's folder; the folder of a run is refused with the name of its experiment."""
    try:
        if not path.is_dir():
            return None
    except OSError:
        return None
    from ..record.reader import ExperimentRecord  # imported here, because listing the roots reads no record

    path = path.resolve()
    if ExperimentRecord(path).is_experiment:
        return path
    above = path.parent
    if RunFiles(path).config.exists() and ExperimentRecord(above).is_experiment:
        raise DataError(f"{path} is one run of an experiment. Name the experiment: {shortest(above)}")
    return None


def _not_found_message(reference: str, entries: Sequence[_Entry], roots: Sequence[Path]) -> str:
    names = {name: None for entry in entries for name in (entry.name, entry.id)}
    guess = closest(reference, names) if len(names) <= 5000 else None  # slow for many names
    parts = [name for name in names if reference.casefold() in name.casefold()][:3]
    near = parts or ([guess] if guess else [])
    hint = f"Did you mean {' or '.join(repr(name) for name in near)}? " if near else ""
    return f"there is no experiment {show(reference)} ({describe_roots(roots)}). {hint}{_LIST_THEM}"


def experiment_roots(roots: Sequence[str | Path] = ()) -> list[Path]:
    """The folders to search for experiments: the given `roots`, or else all known ones."""
    if roots:
        for path in map(Path, roots):
            if not path.is_dir():
                raise DataError(f"--root {path}: there is no such folder. Name the output_dir of your experiments.")
        return _each_once(map(Path, roots))
    here = Path.cwd()
    folders = [here / DEFAULT_ROOT, project_root(here) / DEFAULT_ROOT, *read_output_roots(here)]
    return _each_once(path for path in folders if path.is_dir())


def describe_roots(roots: Sequence[Path]) -> str:
    """The searched folders, for a message."""
    if not roots:
        return f"there is no ./{DEFAULT_ROOT}, and {WORKSPACE_DIR}/{OUTPUT_ROOTS} names no folder"
    shown = ", ".join(shortest(root) for root in roots[:3])
    return f"looked in {shown}" + (f" and {len(roots) - 3} more folders" if len(roots) > 3 else "")


def shortest(path: Path | str) -> str:
    """A path, relative to the working folder if it is below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here) if Path(path).is_relative_to(here) and Path(path) != here else path)


def _each_once(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(path.resolve() for path in paths))
