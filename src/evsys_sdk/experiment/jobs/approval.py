"""Waiting for somebody's word before anything is spent: `budget: {needs_approval: true}`.

The word is an event of the journal. `evsys approve`, the page of a project, and a dashboard by way of a callback write
it there; whoever runs the experiment only reads it, so that it does not matter who was asked where.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...config import ExperimentConfig
from ...errors import ConfigError
from ...log import get_logger
from ...record.events import Event, Journal, Kind, read_events
from ...registry import get_callback
from ...training.callback import Callback

_DECISIONS = (Kind.APPROVED, Kind.REJECTED)
# The journal is a file at hand and is read often; a place elsewhere is asked over the network.
_POLL_S = 0.5
_ASK_S = 5.0


def is_awaited(folder: Path) -> bool:
    """Whether an experiment waits for a word."""
    return _last_word(read_events(folder)) is Kind.APPROVAL_AWAITED


def decide(folder: Path, *, approve: bool, reason: str = "", author: str = "") -> str:
    """Write somebody's word into the journal of an experiment that waits for it; returns the id of the event."""
    if not is_awaited(folder):
        raise ConfigError(f"{folder}: this experiment does not wait for an approval. See what it does: evsys status")
    with Journal.of(folder) as journal:
        return journal.append(Kind.APPROVED if approve else Kind.REJECTED, reason=reason, author=author)


def wait_for_approval(
    config: ExperimentConfig, folder: Path, journal: Journal, is_stopped: Callable[[], bool]
) -> str | None:
    """Block until the experiment may start; why it may not, or None.

    What was approved once stays approved when it is taken up again; what was rejected is asked anew.
    """
    if config.budget is None or not config.budget.needs_approval or _last_word(read_events(folder)) is Kind.APPROVED:
        return None
    journal.append(Kind.APPROVAL_AWAITED)
    get_logger(__name__).warning("waiting for an approval: evsys approve %s (or --reject), or on the dashboard", folder)
    askers, asked = _remote_askers(config), 0.0
    while not is_stopped():
        last = _last_decision(folder)
        if last is not None:
            by = f" by {last.text('author')}" if last.text("author") else ""
            why = f": {last.text('reason')}" if last.text("reason") else ""
            return None if last.kind == Kind.APPROVED else f"rejected{by}{why}"
        if askers and time.monotonic() - asked > _ASK_S:
            asked = time.monotonic()
            _ask_elsewhere(askers, folder)
        time.sleep(_POLL_S)
    return "stopped before it was approved"


def _last_word(events: Any) -> Kind | None:
    kinds = [Kind(event.kind) for event in events if event.kind in (*_DECISIONS, Kind.APPROVAL_AWAITED)]
    return kinds[-1] if kinds else None


def _last_decision(folder: Path) -> Event | None:
    """What was said since the experiment last asked."""
    found: Event | None = None
    for event in read_events(folder):
        if event.kind in _DECISIONS:
            found = event
        elif event.kind == Kind.APPROVAL_AWAITED:
            found = None
    return found


def _remote_askers(config: ExperimentConfig) -> list[Callback]:
    """The callbacks that know a place where people are asked."""
    kinds = [(get_callback(spec.kind), spec.arguments) for spec in config.callbacks]
    return [
        kind(**params)
        for kind, params in kinds
        if getattr(kind, "read_decision", Callback.read_decision) is not Callback.read_decision
    ]


def _ask_elsewhere(askers: Sequence[Callback], folder: Path) -> None:
    for asker in askers:
        try:
            word = asker.read_decision(folder)
        except (Exception, SystemExit) as error:  # code of the user's own may call sys.exit
            get_logger(__name__).warning("callback '%s' failed: %s: %s", asker.name, type(error).__name__, error)
            continue
        # Somebody may have decided here while the answer was on its way.
        if word is not None and is_awaited(folder):
            approve, reason, author = word
            decide(folder, approve=approve, reason=reason, author=author)
