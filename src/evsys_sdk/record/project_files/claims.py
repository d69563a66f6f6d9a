"""Which claims were tried, and how often: from the records of a project, and from a list that stays when they go.

earlier = note_claim("study-1f2e3d4c", claim, folder)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from ...errors import EvsysError
from ...log import get_logger
from ...paths import project_root, workspace_dir
from ..events import Kind, first_event
from ..jsonl_file import JsonlFile, read_records
from ..layout import CLAIMS, DEFAULT_ROOT, lock_beside
from ..lock import exclusive
from ..reader import ExperimentRecord
from ..values import Object, items, subfolders, text
from .roots import is_lasting, read_output_roots

_SAME = 0.5
"""Part of the smaller set of questions from which on two sets are one that was edited."""
_EARLIER = "earlier_attempts"
"""By their ids, the other experiments that had tried the same before this one."""
_SKETCHED = 64
"""Hashes in a sketch; a set of no more questions is known completely by it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What two experiments must have in common to have tried the same."""

    family: str
    """Hash of all of it, tasks included."""
    about: str
    """Hash of metric, direction and baseline."""
    sketch: list[str]
    """The least hashes of its questions: two sets share as many of them as they share questions."""
    n_questions: int

    def is_tried_by(self, claim: Object) -> bool:
        """Whether another one is the same, or the same with a few tasks more or less."""
        if claim.get("family") == self.family:
            return True
        theirs = [text(one) for one in items(claim.get("sketch"))]
        return claim.get("about") == self.about and share_questions(self.sketch, theirs) >= _SAME


class Sketch(TypedDict):
    """What is kept of a set of questions."""

    sketch: list[str]
    n_questions: int


def sketch_questions(hashes: set[str]) -> Sketch:
    """As little of a set of questions as tells, later, how much of it another one has."""
    return {"sketch": sorted(hashes)[:_SKETCHED], "n_questions": len(hashes)}


def share_questions(one: Sequence[str], other: Sequence[str]) -> float:
    """Which part of the smaller of two sets of questions is in the other, by their sketches.

    Only hashes below the least of the two ends are compared: beyond it, the shorter sketch has forgotten some.
    """
    if not one or not other:
        return 0.0
    end = min(
        max(one) if len(one) >= _SKETCHED else "g", max(other) if len(other) >= _SKETCHED else "g"
    )  # "g": all hex
    seen = [{question for question in sketch if question <= end} for sketch in (one, other)]
    return len(seen[0] & seen[1]) / (min(map(len, seen)) or 1)


def note_claim(experiment: str, claim: Claimed, folder: Path) -> list[str]:
    """Note that an experiment is about to try a claim; returns which experiments have tried it before."""
    folder, file = folder.resolve(), workspace_dir() / CLAIMS
    if not is_lasting(folder.parent):
        return _find_others(experiment, claim, folder.parent)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Under the lock, so that of two that start at once each has a number of its own.
        with exclusive(lock_beside(file), str(file)), JsonlFile(file) as claims:
            others = _find_others(experiment, claim, folder.parent)
            own = {"experiment": experiment, "attempt": len(others) + 1, _EARLIER: others, **asdict(claim)}
            claims.append({**own, "path": str(folder), "time": time.time()})
            return others
    except (OSError, EvsysError) as error:
        get_logger(__name__).warning("%s: this claim could not be noted: %s", file, error)
        return _find_others(experiment, claim, folder.parent)


def read_claims() -> Iterator[Object]:
    """Every claim in the project's list, oldest first."""
    file = workspace_dir() / CLAIMS
    return read_records(file) if file.is_file() else iter(())


def _find_others(experiment: str, claim: Claimed, root: Path) -> list[str]:
    """Which other experiments have tried the same, by their ids."""
    roots = dict.fromkeys([root, project_root() / DEFAULT_ROOT, *read_output_roots()])
    told = [*read_claims(), *(one for place in roots for one in _claims_below(place))]
    same = {text(one.get("experiment")): one for one in told if claim.is_tried_by(one)}
    # What these knew of counts as well, though nothing else may be left of it.
    known = {text(name) for one in same.values() for name in items(one.get(_EARLIER))}
    same = {name: {"experiment": name} for name in known} | same
    return sorted(name for name, one in same.items() if name not in ("", experiment) and _was_tried(one))


def _claims_below(root: Path) -> Iterator[Object]:
    for name in subfolders(root):
        first = first_event(root / name)
        if first is not None and first.text("family"):
            told = {key: first.get(key) for key in ("family", "about", "sketch", _EARLIER)}
            yield {"experiment": first.text("experiment_id"), "path": str(root / name), **told}


def _was_tried(claim: Object) -> bool:
    """Whether somebody may have seen a score of it: not where it ended, or was killed, before it had any."""
    record = ExperimentRecord(Path(text(claim.get("path"))))
    if record.experiment_id != claim.get("experiment"):  # it was removed, so nothing shows that there was none
        return True
    return any(event.kind == Kind.SCORED for event in record.events) or record.is_running
