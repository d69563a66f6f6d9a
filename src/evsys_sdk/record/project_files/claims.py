"""Which claims were tested, and how often: from the records of a project, and from a list that stays when they go.

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
"""Share of the kept hashes that two task sets must have in common; sets of different tasks share none."""
_EARLIER = "earlier_attempts"
TOLD = ("family", "about", "changes", "tasks", "evidence", "attempt", _EARLIER)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What an experiment tests, as its journal and the project's list hold it."""

    family: str
    """Hash of all of it."""
    about: str
    """Hash of metric, direction, model and backend."""
    changes: list[str]
    """What each compared run changes, hashed."""
    tasks: list[str]
    """The least hashes of its questions: enough to know the set again with tasks added or left out."""
    evidence: str
    """Hash of arms, seeds, data, tasks and own code: the same for an experiment that is simply run again."""

    def is_family_of(self, other: Object) -> bool:
        """Whether another experiment tested one of the same changes on the same tasks."""
        theirs = {text(one) for one in items(other.get("tasks"))}
        fewest = min(len(self.tasks), len(theirs)) or 1
        changes = {text(one) for one in items(other.get("changes"))}
        return (
            other.get("about") == self.about
            and not changes.isdisjoint(self.changes)
            and len(theirs.intersection(self.tasks)) >= _SAME_TASKS * fewest
        )


def note_claim(experiment: str, claim: Claimed, folder: Path) -> list[str]:
    """Note that an experiment is about to test a claim, for the first time or with more seeds or arms.

    Returns which experiments have tested it before, once for each analysis.
    """
    folder, file = folder.resolve(), workspace_dir() / CLAIMS
    if not is_lasting(folder.parent):
        return _find_analyses(claim, folder.parent)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, so that of two that start at once each has its own number.
        with exclusive(lock_beside(file), str(file)), JsonlFile(file) as claims:
            earlier = _find_analyses(claim, folder.parent)
            own = {"experiment": experiment, "attempt": len(earlier) + 1, _EARLIER: earlier, **asdict(claim)}
            claims.append({**own, "path": str(folder), "time": time.time()})
            return earlier
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: this claim could not be noted: %s", file, error)
        return _find_analyses(claim, folder.parent)


def find_same_evidence(evidence: str, folder: Path) -> Object:
    """The earliest experiment with the same evidence that has scores; empty where there is none."""
    found = (one for one in _list_claims(folder.resolve().parent) if one.get("evidence") == evidence)
    return next(found, dict[str, Any]())


def read_claims() -> Iterator[Object]:
    """Every claim in the project's list, oldest first."""
    file = workspace_dir() / CLAIMS
    return read_records(file) if file.is_file() else iter(())


def _find_analyses(claim: Claimed, root: Path) -> list[str]:
    """The experiments of a family, by their ids, once for each analysis."""
    stated: Counter[str] = Counter()
    known: set[str] = set()
    for one in filter(claim.is_family_of, _list_claims(root)):
        stated[text(one.get("experiment"))] += 1
        known |= {text(name) for name in items(one.get(_EARLIER))}
    # What these knew of counts as well, though nothing else may be left of it.
    return sorted([*stated.elements(), *(known - stated.keys())])


def _list_claims(root: Path) -> Iterator[Object]:
    """Everything that was tested and has scores: the project's list, then records that are not in it."""
    listed: Counter[str] = Counter()
    for one in read_claims():
        listed[text(one.get("experiment"))] += 1
        if _has_scores(one):
            yield one
    for place in dict.fromkeys([root, project_root() / DEFAULT_ROOT, *read_output_roots()]):
        for name in subfolders(place):
            first = first_event(place / name)
            if first is None or not first.text("evidence") or first.text("same_evidence"):
                continue
            stated = {key: first.get(key) for key in TOLD}
            one = {"experiment": first.text("experiment_id"), "path": str(place / name), **stated}
            if _has_scores(one):
                analyses = 1 + sum(event.get("extended") is True for event in ExperimentRecord(place / name).events)
                yield from [one] * (analyses - listed.get(first.text("experiment_id"), 0))
                listed[first.text("experiment_id")] = analyses


def _has_scores(claim: Object) -> bool:
    """Whether a score of it may have been seen: not where it ended, or was killed, before it had any."""
    record = ExperimentRecord(Path(text(claim.get("path"))))
    if record.experiment_id != claim.get("experiment"):  # it was removed, so nothing shows that there was none
        return True
    return any(event.kind == Kind.SCORED for event in record.events) or record.is_running
