"""What needs a person: experiments that wait, failed, were killed, were stopped by a limit, or are flagged.

One list for the command line, the page and alerts.

    for one in find_attention(history.select(sort="newest")):
        print(one.kind, one.experiment, one.what, one.command)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from ..record.view.model import ExperimentView

ATTENTION_DAYS = 7
"""How long an experiment that has ended stays on the list."""
_ORDER = ("waiting", "damaged", "failed", "killed", "flagged", "budget")
_WHAT = {
    "waiting": "waits for approval",
    "damaged": "its record cannot be read",
    "failed": "failed",
    "killed": "was killed",
    "budget": "stopped by its budget",
}
_COMMANDS = {"waiting": "evsys approve {path}", "flagged": "evsys audit {path}"}


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One reason to look at an experiment, and the command to start with."""

    id: str
    """The same for the same state of the same experiment: an alert about it is sent again under this id."""
    kind: str
    experiment: str
    path: str
    what: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_attention(views: Iterable[ExperimentView]) -> list[AttentionItem]:
    """What needs a person among experiments, newest first; of several attempts at one, the latest counts."""
    latest: dict[str, ExperimentView] = {}
    for one in views:
        latest.setdefault(one.name or one.id, one)
    found = [_look_at(one, kind) for one in latest.values() if not one.invalidated and (kind := _kind(one))]
    return sorted(found, key=lambda item: _ORDER.index(item.kind))


def _kind(one: ExperimentView) -> str | None:
    if one.status in _WHAT:
        return one.status
    return "flagged" if one.flags else None


def _look_at(one: ExperimentView, kind: str) -> AttentionItem:
    what = f"flagged: {one.flags[0]}" if kind == "flagged" else _WHAT[kind]
    if kind == "failed" and one.failures:
        what = f"{what}: {one.failures[0].arm}: {one.failures[0].reason}"
    what = what.splitlines()[0][:160]
    command = _COMMANDS.get(kind, "evsys show {path}").format(path=quote(one.path))
    return AttentionItem(
        f"{one.id}/{kind}/{round(one.ended or one.started or 0)}", kind, one.id, one.path, what, command
    )
