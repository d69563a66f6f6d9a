"""Wait for an approval before anything is spent: `budget: {needs_approval: true}`. The store is `record/approvals.py`.

A dashboard's decision comes through a callback and is written into the journal like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...config import ExperimentConfig
from ...log import get_logger
from ...record.approvals import (
    APPROVED,
    REJECTED,
    decide_approval,
    is_approved,
    list_awaited,
    read_approvals,
    request_approval,
)
from ...record.events import read_events
from ...registry import get_callback
from ...training.callback import Callback

_POLL_S = 0.5
"""Seconds between reads of the journal."""
_ASK_S = 5.0
"""Seconds between requests to dashboards."""


def wait_for_approval(config: ExperimentConfig, folder: Path, is_stopped: Callable[[], bool]) -> str | None:
    """Wait until the experiment may start; return the reason why it may not, or None.

    An approved experiment stays approved when it is resumed; a rejected one asks again.
    """
    if config.budget is None or not config.budget.needs_approval or is_approved(folder):
        return None
    request_approval(folder, about=config.name)
    get_logger(__name__).warning("waiting for an approval: evsys approve %s (or --reject), or on the dashboard", folder)
    askers, last_asked = _remote_askers(config), 0.0
    while not is_stopped():
        approval = read_approvals(read_events(folder))[""]
        if approval.state in (APPROVED, REJECTED):
            by = f" by {approval.by}" if approval.by else ""
            why = f": {approval.reason}" if approval.reason else ""
            return None if approval.state == APPROVED else f"rejected{by}{why}"
        if askers and time.monotonic() - last_asked > _ASK_S:
            last_asked = time.monotonic()
            _ask_through_callbacks(askers, folder)
        time.sleep(_POLL_S)
    return "stopped before it was approved"


def _remote_askers(config: ExperimentConfig) -> list[Callback]:
    """The callbacks that can read a decision from elsewhere, such as a dashboard."""
    kinds = [(get_callback(spec.kind), spec.arguments) for spec in config.callbacks]
    return [
        kind(**params)
        for kind, params in kinds
        if getattr(kind, "read_decision", Callback.read_decision) is not Callback.read_decision
    ]


def _ask_through_callbacks(askers: Sequence[Callback], folder: Path) -> None:
    for asker in askers:
        try:
            decision = asker.read_decision(folder)
        except (Exception, SystemExit) as error:  # user code may call sys.exit
            get_logger(__name__).warning("callback '%s' failed: %s: %s", asker.name, type(error).__name__, error)
            continue
        # It may have been decided here meanwhile.
        if decision is not None and list_awaited(folder):
            approve, reason, author = decision
            decide_approval(folder, approve=approve, reason=reason, author=author)
