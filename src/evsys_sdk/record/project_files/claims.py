"""The tested claims of a project: from its records, and from a list that keeps claims of removed records.

attempt = note_claim("study-1f2e3d4c", claim, folder)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import EvsysError
from ...log import get_logger
from ...paths import project_root, workspace_dir
from ..events import Kind, first_event
from ..jsonl_file import JsonlFile, read_records
from ..layout import CLAIMS, DEFAULT_ROOT, lock_beside
from ..lock import exclusive
from ..reader import ExperimentRecord
from ..values import Object, items, number, subfolders, text
from .known_folders import is_lasting, read_output_roots

_SAME_TASKS = 0.25
"""Share of the task hashes that two sets must have in common to count as the same tasks."""
JOURNALED = ("family", "about", "changes", "tasks", "evidence", "attempt")


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim of an experiment, as its journal and the project's list hold it."""

    family: str
    """Hash of the whole claim."""
    about: str
    """Hash of metric, direction, model and backend."""
    changes: list[str]
    """Hash of the change of each compared run."""
    tasks: list[str]
    """The smallest hashes of its tasks, to recognise the set after tasks were added or removed."""
    evidence: str
    """Hash of arms, seeds, data, tasks and user code; equal for a plain repetition."""

    def is_family_of(self, other: Object) -> bool:
        """Whether another experiment tested one of the same changes on about the same tasks."""
        their_tasks = {text(task) for task in items(other.get("tasks"))}
        fewest = min(len(self.tasks), len(their_tasks)) or 1
        changes = {text(change) for change in items(other.get("changes"))}
        return (
            other.get("about") == self.about
            and not changes.isdisjoint(self.changes)
            and len(their_tasks.intersection(self.tasks)) >= _SAME_TASKS * fewest
        )


def note_claim(experiment: str, claim: Claimed, folder: Path) -> int:
    """Record that an experiment is about to test a claim, for the first time or with more seeds or arms.

    Returns the number of the trial, from 1.
    """
    folder, file = folder.resolve(), workspace_dir() / CLAIMS
    if not is_lasting(folder.parent):
        return _next_trial(claim, folder.parent)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, so that two experiments that start at once get different numbers.
        with exclusive(lock_beside(file), str(file)), JsonlFile(file) as claims:
            attempt = _next_trial(claim, folder.parent)
            trial = {"experiment": experiment, "attempt": attempt, "path": str(folder), "time": time.time()}
            claims.append({**asdict(claim), **trial})
            return attempt
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: the claim could not be recorded: %s", file, error)
        return _next_trial(claim, folder.parent)


def find_same_evidence(evidence: str, folder: Path) -> Object:
    """The earliest scored experiment with the same evidence; empty if there is none."""
    claims = (claim for claim in _list_claims(folder.resolve().parent) if claim.get("evidence") == evidence)
    return next(claims, dict[str, Any]())


def read_claims() -> Iterator[Object]:
    """Every claim in the project's list, oldest first."""
    file = workspace_dir() / CLAIMS
    return read_records(file) if file.is_file() else iter(())


def _next_trial(claim: Claimed, root: Path) -> int:
    """The number after the known analyses of a family, and after those that these counted: some may be removed."""
    trials = [int(number(line.get("attempt")) or 1) for line in _list_claims(root) if claim.is_family_of(line)]
    return 1 + max(len(trials), *trials, 0)


def _list_claims(root: Path) -> Iterator[Object]:
    """The scored claims: those of the project's list, then those of records that are not in it."""
    claims = [*read_claims()]
    listed = {claim.get("experiment") for claim in claims}
    for place in dict.fromkeys([root, project_root() / DEFAULT_ROOT, *read_output_roots()]):
        for name in subfolders(place):
            first = first_event(place / name)
            experiment = "" if first is None else first.text("experiment_id")
            if first is None or experiment in listed or not first.text("evidence") or first.text("same_evidence"):
                continue
            listed.add(experiment)
            claims.append({**first.payload, "experiment": experiment, "path": str(place / name)})
    for claim in claims:
        record = ExperimentRecord(Path(text(claim.get("path"))))
        if record.experiment_id != claim.get("experiment"):  # it was removed, so its scores are unknown
            yield claim
        elif record.is_running or any(event.kind == Kind.SCORED for event in record.events):
            # An extension of an experiment that is not in the list is an analysis too.
            yield from [claim] * (
                1 if "time" in claim else 1 + sum(event.get("extended") is True for event in record.events)
            )
