"""The head of a journal, noted outside of it: in a git note or a file where its writer cannot write, and in `.evsys/`.

A chain proves that its lines follow each other; it does not prove that lines are missing at its end, or that all of it
was not written anew. An anchor does: it says how many events there were at a moment, and the hash of the last of them.
The one in the project's own `.evsys/` is noted without being asked for. A writer of the journal can change that too;
but who restores an old record, or cuts off a mark, has to know.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError, EvsysError
from ..log import get_logger
from ..paths import workspace_dir
from .events import digest
from .jsonl_file import JsonlFile, complete_lines, read_records
from .layout import DRY_RUNS, HEADS, ExperimentFiles
from .project_files.known_folders import is_lasting
from .reader import experiment_id

_NOTES = "--ref=evsys"  # notes of their own: what people note about a commit is not touched, nor shown in between


def make_anchor(experiment_dir: Path) -> dict[str, Any]:
    """What is to be noted about a journal as it is now."""
    # Without its end, as the line after it hashes it: the head is what a next event would carry.
    lines = [line[:-1] for _, line in complete_lines(ExperimentFiles(experiment_dir).journal)]
    head = digest(lines[-1]) if lines else ""
    return {"experiment": experiment_id(experiment_dir), "events": len(lines), "head": head, "time": time.time()}


def anchor_in_file(experiment_dir: Path, file: Path) -> dict[str, Any]:
    """Add the head of a journal to a file, which should lie where its writer has no say."""
    anchor = make_anchor(experiment_dir)
    with JsonlFile(file) as anchors:
        anchors.append(anchor)
    return anchor


def note_head(experiment_dir: Path) -> None:
    """Note the head of a journal in the project's workspace; nothing fails because of it."""
    folder, file = experiment_dir.resolve(), workspace_dir() / HEADS
    if not is_lasting(folder.parent) or folder.parent.name == DRY_RUNS:
        return
    try:
        anchor_in_file(folder, file)
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: the end of %s could not be noted: %s", file, folder, error)


def is_head_noted(experiment_dir: Path, *, at_most: int) -> bool:
    """Whether the project's workspace has noted the head of a journal while it had at most so many events."""
    mine, noted = experiment_id(experiment_dir), read_records(workspace_dir() / HEADS)
    return mine is not None and any(one.get("experiment") == mine and one["events"] <= at_most for one in noted)


def anchor_in_git(experiment_dir: Path) -> dict[str, Any]:
    """Add the head of a journal to the notes of the present commit; pushing them puts them out of reach."""
    anchor = make_anchor(experiment_dir)
    done = _git(experiment_dir, "notes", _NOTES, "append", "-m", json.dumps(anchor), "HEAD")
    if done is None:
        raise DataError(f"{experiment_dir}: this is in no git repository with a commit. Anchor it in a file instead.")
    return anchor


def check_anchors(
    experiment_dir: Path, file: Path | None = None, witnessed: Iterable[dict[str, Any]] = ()
) -> tuple[int, list[str]]:
    """How many anchors of an experiment are known, and what in its journal contradicts them.

    They are in git, in `file`, and what somebody else `witnessed`. Those of the project's own workspace contradict as
    well, but prove nothing: they are not counted.
    """
    mine = experiment_id(experiment_dir)
    lines = [line[:-1] for _, line in complete_lines(ExperimentFiles(experiment_dir).journal)]
    known, problems = 0, list[str]()
    elsewhere = [*_in_git(experiment_dir), *(read_records(file) if file is not None else ()), *witnessed]
    for at, anchor in enumerate((*elsewhere, *read_records(workspace_dir() / HEADS))):
        if anchor.get("experiment") != mine or mine is None:
            continue
        known += at < len(elsewhere)
        events = int(anchor.get("events") or 0)
        if events > len(lines):
            problems.append(f"there were {events} events when it was anchored, and there are {len(lines)} now")
        elif events and digest(lines[events - 1]) != anchor.get("head"):
            problems.append(f"event {events} is not the one that was anchored")
    return known, list(dict.fromkeys(problems))


def _in_git(experiment_dir: Path) -> Iterator[dict[str, Any]]:
    listed = _git(experiment_dir, "notes", _NOTES, "list")
    for line in (listed or "").splitlines():
        note = _git(experiment_dir, "cat-file", "-p", line.split()[0]) or ""
        for text in note.splitlines():
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found  # pyright: ignore[reportUnknownVariableType]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it has nothing to say."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
