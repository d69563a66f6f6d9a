"""Approvals: what waits for a person, and what was decided. One kind for experiments, campaigns and loops.

Each is an event in the journal of whatever waits, so that it does not matter where a person is asked: `evsys approve`,
the page, a dashboard. The waiting process only reads.

    ask_approval(folder, "deploy of round 3", about="...")
    decide_approval(folder, approve=True, author="ann")
    read_approvals(read_events(folder))["deploy of round 3"].state
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, show
from ..paths import workspace_dir
from ..redact import redact_text
from .events import Event, Journal, Kind, read_events
from .layout import CAMPAIGNS, LOOPS, ExperimentFiles
from .values import subfolders

AWAITED, APPROVED, REJECTED = "awaited", "approved", "rejected"
_STATES = {Kind.APPROVED: APPROVED, Kind.CAMPAIGN_APPROVED: APPROVED, Kind.REJECTED: REJECTED}
_FOLDERS = {"campaign": CAMPAIGNS, "loop": LOOPS}


@dataclass(frozen=True, slots=True)
class Approval:
    """One thing that needs a person's approval, and where that stands."""

    subject: str
    """What is approved: the hash of a plan, a step of a loop; empty for an experiment as a whole."""
    state: str
    """awaited, approved or rejected."""
    about: str = ""
    """The subject in words."""
    by: str = ""
    reason: str = ""
    time: float = 0.0
    """Of the last change."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_approvals(events: Iterable[Event]) -> dict[str, Approval]:
    """Subject -> its approval, as the events of one journal tell it."""
    found: dict[str, Approval] = {}
    for event in events:
        at, subject = event.time or 0.0, event.text("subject")
        if event.kind == Kind.APPROVAL_AWAITED:
            found[subject] = Approval(subject, AWAITED, event.text("about"), time=at)
        elif event.kind in _STATES:
            # Journals of campaigns from before had `plan`; a dashboard may name an experiment's only question freely.
            subject = subject or event.text("plan")
            open_ones = [one.subject for one in found.values() if one.state == AWAITED]
            if subject not in found and len(open_ones) == 1:
                subject = open_ones[0]
            one = found.get(subject, Approval(subject, AWAITED))
            by = event.text("author") or event.text("by")
            found[subject] = replace(one, state=_STATES[Kind(event.kind)], by=by, reason=event.text("reason"), time=at)
    return found


def list_awaited(folder: Path) -> list[Approval]:
    """What waits for a person in the journal of a folder."""
    return [one for one in _read(folder).values() if one.state == AWAITED]


def is_approved(folder: Path, subject: str = "") -> bool:
    """Whether somebody said yes, and no one no since."""
    one = _read(folder).get(subject)
    return one is not None and one.state == APPROVED


def ask_approval(folder: Path, subject: str = "", *, about: str = "") -> None:
    """Ask for an approval, once until it is decided; what was rejected is asked anew."""
    one = _read(folder).get(subject)
    if one is None or one.state == REJECTED:
        folder.mkdir(parents=True, exist_ok=True)
        with Journal.of(folder) as journal:
            journal.append(Kind.APPROVAL_AWAITED, subject=subject, about=about)


def decide_approval(
    folder: Path, *, approve: bool, subject: str | None = None, reason: str = "", author: str = ""
) -> str:
    """Write a decision into the journal of what waits for it; returns the id of the event.

    Without a subject it is the only one that waits. A named one may be decided before it is asked for.
    """
    if subject is None:
        waiting = list_awaited(folder)
        if not waiting:
            raise ConfigError(f"{folder}: this does not wait for an approval. See what it does: evsys status")
        if len(waiting) > 1:
            named = ", ".join(show(one.subject) for one in waiting)
            raise ConfigError(f"{folder}: several approvals are waiting: {named}. Name one of them.")
        subject = waiting[0].subject
    kind = Kind.APPROVED if approve else Kind.REJECTED
    with Journal.of(folder) as journal:
        return journal.append(kind, subject=subject, reason=redact_text(reason), author=redact_text(author))


def approval_folder(target: str) -> Path | None:
    """The folder of `campaign:NAME` or `loop:NAME`; None for anything else, which is an experiment."""
    kind, found, name = target.partition(":")
    if not found or kind not in _FOLDERS:
        return None
    known = subfolders(workspace_dir() / _FOLDERS[kind])
    if name not in known:
        raise ConfigError(f"there is no {kind} {show(name)}. There are: {', '.join(sorted(known)) or 'none'}.")
    return workspace_dir() / _FOLDERS[kind] / name


def list_project_approvals() -> Iterator[tuple[str, Approval]]:
    """Everything that waits in the campaigns and loops of this project, as `campaign:NAME` or `loop:NAME`."""
    for kind, folder in _FOLDERS.items():
        for name in sorted(subfolders(workspace_dir() / folder)):
            for one in list_awaited(workspace_dir() / folder / name):
                yield f"{kind}:{name}", one


def _read(folder: Path) -> dict[str, Approval]:
    return read_approvals(read_events(folder)) if ExperimentFiles(folder).journal.is_file() else {}
