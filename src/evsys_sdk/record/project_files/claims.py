"""The tested claims of a project: from its records, and from a list that keeps claims of removed records.

earlier = note_claim("study-1f2e3d4c", claim, folder)
"""

from __future__ import annotations

import time
from collections import Counter
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
from ..values import Object, items, subfolders, text
from .known_folders import is_lasting, read_output_roots

_SAME_TASKS = 0.25
"""Share of the task hashes that two sets must have in common to count as the same tasks."""
_EARLIER = "earlier_attempts"
JOURNALED = ("family", "about", "changes", "tasks", "evidence", "attempt", _EARLIER)


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


def note_claim(experiment: str, claim: Claimed, folder: Path) -> list[str]:
    """Record that an experiment is about to test a claim, for the first time or with more seeds or arms.

    Returns the experiments that tested it before, once per analysis.
    """
    folder, file = folder.resolve(), workspace_dir() / CLAIMS
    if not is_lasting(folder.parent):
        return _find_analyses(claim, folder.parent)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, so that two experiments that start at once get different numbers.
        with exclusive(lock_beside(file), str(file)), JsonlFile(file) as claims:
            earlier = _find_analyses(claim, folder.parent)
            entry = {"experiment": experiment, "attempt": len(earlier) + 1, _EARLIER: earlier, **asdict(claim)}
            claims.append({**entry, "path": str(folder), "time": time.time()})
            return earlier
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: the claim could not be recorded: %s", file, error)
        return _find_analyses(claim, folder.parent)


def find_same_evidence(evidence: str, folder: Path) -> Object:
    """The earliest scored experiment with the same evidence; empty if there is none."""
    claims = (claim for claim in _list_claims(folder.resolve().parent) if claim.get("evidence") == evidence)
    return next(claims, dict[str, Any]())


def read_claims() -> Iterator[Object]:
    """Every claim in the project's list, oldest first."""
    file = workspace_dir() / CLAIMS
    return read_records(file) if file.is_file() else iter(())


def _find_analyses(claim: Claimed, root: Path) -> list[str]:
    """The ids of the experiments of a family, once per analysis."""
    counted: Counter[str] = Counter()
    mentioned: set[str] = set()
    for tested in filter(claim.is_family_of, _list_claims(root)):
        counted[text(tested.get("experiment"))] += 1
        mentioned |= {text(name) for name in items(tested.get(_EARLIER))}
    # Analyses that only these claims mention count too; their own entries may be gone.
    return sorted([*counted.elements(), *(mentioned - counted.keys())])


def _list_claims(root: Path) -> Iterator[Object]:
    """The scored claims: those of the project's list, then those of records that are not in it."""
    listed: Counter[str] = Counter()
    for claim in read_claims():
        listed[text(claim.get("experiment"))] += 1
        if _has_scores(claim):
            yield claim
    for place in dict.fromkeys([root, project_root() / DEFAULT_ROOT, *read_output_roots()]):
        for name in subfolders(place):
            first = first_event(place / name)
            if first is None or not first.text("evidence") or first.text("same_evidence"):
                continue
            fields = {key: first.get(key) for key in JOURNALED}
            claim = {"experiment": first.text("experiment_id"), "path": str(place / name), **fields}
            if _has_scores(claim):
                analyses = 1 + sum(event.get("extended") is True for event in ExperimentRecord(place / name).events)
                yield from [claim] * (analyses - listed.get(first.text("experiment_id"), 0))
                listed[first.text("experiment_id")] = analyses


def _has_scores(claim: Object) -> bool:
    """Whether a score of it may exist: False only if its record ended or was killed without one."""
    record = ExperimentRecord(Path(text(claim.get("path"))))
    if record.experiment_id != claim.get("experiment"):  # it was removed, so its scores are unknown
        return True
    return any(event.kind == Kind.SCORED for event in record.events) or record.is_running
