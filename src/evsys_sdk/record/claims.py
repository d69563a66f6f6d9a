"""Which claims were tried, and how often: from the records of a project, and from a list that stays when they go.

attempt = note_claim("study-1f2e3d4c", family, folder)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import EvsysError
from ..log import get_logger
from ..paths import project_root, workspace_dir
from .events import Kind, first_event
from .jsonl_file import JsonlFile, read_records
from .layout import CLAIMS, DEFAULT_ROOT, lock_beside
from .lock import exclusive
from .reader import ExperimentRecord
from .roots import is_lasting, read_output_roots
from .values import Object, subfolders, text


def note_claim(experiment: str, family: str, folder: Path) -> int:
    """Note that an experiment is about to try a claim; returns which attempt that is, counted from 1."""
    folder, file = folder.resolve(), workspace_dir() / CLAIMS
    if not is_lasting(folder.parent):
        return _count_others(experiment, family, folder.parent) + 1
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, so that of two that start at once each has a number of its own.
        with exclusive(lock_beside(file), str(file)), JsonlFile(file) as claims:
            attempt = _count_others(experiment, family, folder.parent) + 1
            own = {"experiment": experiment, "family": family, "attempt": attempt}
            claims.append({**own, "path": str(folder), "time": time.time()})
            return attempt
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: this claim could not be noted: %s", file, error)
        return _count_others(experiment, family, folder.parent) + 1


def read_claims() -> Iterator[Object]:
    """Every claim in the project's list, oldest first."""
    file = workspace_dir() / CLAIMS
    return read_records(file) if file.is_file() else iter(())


def _count_others(experiment: str, family: str, root: Path) -> int:
    """How many other experiments have tried the same."""
    roots = dict.fromkeys([root, project_root() / DEFAULT_ROOT, *read_output_roots()])
    told = [*read_claims(), *(claim for place in roots for claim in _claims_below(place))]
    same = {text(claim.get("experiment")): claim for claim in told if claim.get("family") == family}
    return sum(_was_tried(claim) for name, claim in same.items() if name not in ("", experiment))


def _claims_below(root: Path) -> Iterator[Object]:
    for name in subfolders(root):
        first = first_event(root / name)
        if first is not None and first.text("family"):
            yield {"experiment": first.text("experiment_id"), "family": first.text("family"), "path": str(root / name)}


def _was_tried(claim: Object) -> bool:
    """Whether somebody may have seen a score of it: not where it ended, or was killed, before it had any."""
    record = ExperimentRecord(Path(text(claim.get("path"))))
    if record.experiment_id != claim.get("experiment"):  # it was removed, so nothing shows that there was none
        return True
    return any(event.kind == Kind.SCORED for event in record.events) or record.is_running
