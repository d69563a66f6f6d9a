"""Anchors: the head of a journal, noted in git, in a file that its writer cannot change, and in `.evsys/`.

A hash chain does not detect lines that are cut off at its end, or a journal that was rewritten as a whole. An anchor
does: it holds the number of events at a time, and the hash of the last one. The anchor in the project's `.evsys/` is
written automatically. A writer of the journal could change it too, but not by accident.
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

_NOTES = "--ref=evsys"  # a separate ref, so that other notes of a commit stay untouched


def make_anchor(experiment_dir: Path) -> dict[str, Any]:
    """The anchor of a journal as it is now."""
    # Without the newline, as the next event would hash the line.
    lines = [line[:-1] for _, line in complete_lines(ExperimentFiles(experiment_dir).journal)]
    head = digest(lines[-1]) if lines else ""
    return {"experiment": experiment_id(experiment_dir), "events": len(lines), "head": head, "time": time.time()}


def anchor_in_file(experiment_dir: Path, file: Path) -> dict[str, Any]:
    """Append the anchor of a journal to a file, which its writer should not be able to change."""
    anchor = make_anchor(experiment_dir)
    with JsonlFile(file) as anchors:
        anchors.append(anchor)
    return anchor


def note_head(experiment_dir: Path) -> None:
    """Append the anchor of a journal to the project's list; a failure is only logged."""
    folder, file = experiment_dir.resolve(), workspace_dir() / HEADS
    if not is_lasting(folder.parent) or folder.parent.name == DRY_RUNS:
        return
    try:
        anchor_in_file(folder, file)
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: the head of %s could not be noted: %s", file, folder, error)


def is_head_noted(experiment_dir: Path, *, at_most: int) -> bool:
    """Whether the project's list has an anchor of a journal with at most `at_most` events."""
    own_id, anchors = experiment_id(experiment_dir), read_records(workspace_dir() / HEADS)
    return own_id is not None and any(
        anchor.get("experiment") == own_id and anchor["events"] <= at_most for anchor in anchors
    )


def anchor_in_git(experiment_dir: Path) -> dict[str, Any]:
    """Append the anchor of a journal to the git notes of the current commit; push them to protect them."""
    anchor = make_anchor(experiment_dir)
    output = _git(experiment_dir, "notes", _NOTES, "append", "-m", json.dumps(anchor), "HEAD")
    if output is None:
        raise DataError(f"{experiment_dir}: not in a git repository with a commit. Anchor it in a file instead.")
    return anchor


def check_anchors(
    experiment_dir: Path, file: Path | None = None, witnessed: Iterable[dict[str, Any]] = ()
) -> tuple[int, list[str]]:
    """The number of an experiment's anchors, and the contradictions between them and its journal.

    Anchors come from git, `file` and `witnessed`. Those of the project's `.evsys/` are checked too, but not counted,
    because a writer of the journal can change them.
    """
    own_id = experiment_id(experiment_dir)
    lines = [line[:-1] for _, line in complete_lines(ExperimentFiles(experiment_dir).journal)]
    n_external, problems = 0, list[str]()
    external = [*_in_git(experiment_dir), *(read_records(file) if file is not None else ()), *witnessed]
    for index, anchor in enumerate((*external, *read_records(workspace_dir() / HEADS))):
        if anchor.get("experiment") != own_id or own_id is None:
            continue
        n_external += index < len(external)
        events = int(anchor.get("events") or 0)
        if events > len(lines):
            problems.append(f"there were {events} events when it was anchored, and there are {len(lines)} now")
        elif events and digest(lines[events - 1]) != anchor.get("head"):
            problems.append(f"event {events} is not the one that was anchored")
    return n_external, list(dict.fromkeys(problems))


def _in_git(experiment_dir: Path) -> Iterator[dict[str, Any]]:
    listed = _git(experiment_dir, "notes", _NOTES, "list")
    for line in (listed or "").splitlines():
        note = _git(experiment_dir, "cat-file", "-p", line.split()[0]) or ""
        for text in note.splitlines():
            try:
                anchor = json.loads(text)
            except ValueError:
                continue
            if isinstance(anchor, dict):
                yield anchor  # pyright: ignore[reportUnknownVariableType]


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a git command; None if it fails."""
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None
