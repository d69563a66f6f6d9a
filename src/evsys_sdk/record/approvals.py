"""Human approvals of experiments, campaigns and loops: requests and decisions.

Requests and decisions are events in the journal of the experiment, campaign or loop, so that a person can decide with
`evsys approve` or on a page. The waiting process only reads.

    request_approval(folder, "deploy of round 3", about="...")
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
    """A request for human approval and its state."""

    subject: str
    """The hash of a plan, or a step of a loop; empty for a whole experiment."""
    state: str
    """awaited, approved or rejected."""
    about: str = ""
    """Description of the subject."""
    by: str = ""
    reason: str = ""
    time: float = 0.0
    """Time of the last change."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_approvals(events: Iterable[Event]) -> dict[str, Approval]:
    """Subject -> its approval, from the events of one journal."""
    approvals: dict[str, Approval] = {}
    for event in events:
        at, subject = event.time or 0.0, event.text("subject")
        if event.kind == Kind.APPROVAL_AWAITED:
            approvals[subject] = Approval(subject, AWAITED, event.text("about"), time=at)
        elif event.kind in _STATES:
            # Older journals of campaigns have `plan`; a dashboard may use any name for the only open request.
            subject = subject or event.text("plan")
            awaited = [approval.subject for approval in approvals.values() if approval.state == AWAITED]
            if subject not in approvals and len(awaited) == 1:
                subject = awaited[0]
            approval = approvals.get(subject, Approval(subject, AWAITED))
            by = event.text("author") or event.text("by")
            state, reason = _STATES[Kind(event.kind)], event.text("reason")
            approvals[subject] = replace(approval, state=state, by=by, reason=reason, time=at)
    return approvals


def list_awaited(folder: Path) -> list[Approval]:
    """The open requests in the journal of a folder."""
    return [approval for approval in _read(folder).values() if approval.state == AWAITED]


def is_approved(folder: Path, subject: str = "") -> bool:
    """Whether the last decision is an approval."""
    approval = _read(folder).get(subject)
    return approval is not None and approval.state == APPROVED


def request_approval(folder: Path, subject: str = "", *, about: str = "") -> None:
    """Request an approval, unless it is open or approved; a rejected subject is requested again."""
    approval = _read(folder).get(subject)
    if approval is None or approval.state == REJECTED:
        folder.mkdir(parents=True, exist_ok=True)
        with Journal.of(folder) as journal:
            journal.append(Kind.APPROVAL_AWAITED, subject=subject, about=about)


def decide_approval(
    folder: Path, *, approve: bool, subject: str | None = None, reason: str = "", author: str = ""
) -> str:
    """Write a decision into the journal of a folder; returns the id of the event.

    Without a subject, it decides the only open request. A named subject may be decided before it is requested.
    """
    if subject is None:
        waiting = list_awaited(folder)
        if not waiting:
            raise ConfigError(f"{folder}: no approval is awaited here. See the status with: evsys status")
        if len(waiting) > 1:
            named = ", ".join(show(approval.subject) for approval in waiting)
            raise ConfigError(f"{folder}: several approvals are awaited: {named}. Name one of them.")
        subject = waiting[0].subject
    kind = Kind.APPROVED if approve else Kind.REJECTED
    with Journal.of(folder) as journal:
        return journal.append(kind, subject=subject, reason=redact_text(reason), author=redact_text(author))


def approval_folder(target: str) -> Path | None:
    """The folder of `campaign:NAME` or `loop:NAME`; None for other targets, which are experiments."""
    kind, colon, name = target.partition(":")
    if not colon or kind not in _FOLDERS:
        return None
    known = subfolders(workspace_dir() / _FOLDERS[kind])
    if name not in known:
        raise ConfigError(f"there is no {kind} {show(name)}. There are: {', '.join(sorted(known)) or 'none'}.")
    return workspace_dir() / _FOLDERS[kind] / name


def list_project_approvals() -> Iterator[tuple[str, Approval]]:
    """The open requests of this project's campaigns and loops, with `campaign:NAME` or `loop:NAME`."""
    for kind, folder in _FOLDERS.items():
        for name in sorted(subfolders(workspace_dir() / folder)):
            for approval in list_awaited(workspace_dir() / folder / name):
                yield f"{kind}:{name}", approval


def _read(folder: Path) -> dict[str, Approval]:
    return read_approvals(read_events(folder)) if ExperimentFiles(folder).journal.is_file() else {}
