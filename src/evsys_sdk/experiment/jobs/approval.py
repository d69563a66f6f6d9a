"""Wait for an approval before anything is spent: `budget: {needs_approval: true}`. The store is `record/approvals.py`.

A dashboard is asked by way of a callback; what it answers is written into the journal like any other decision.
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
    ask_approval,
    decide_approval,
    is_approved,
    list_awaited,
    read_approvals,
)
from ...record.events import read_events
from ...registry import get_callback
from ...training.callback import Callback

# The journal is a file at hand and is read often; a place elsewhere is asked over the network.
_POLL_S = 0.5
_ASK_S = 5.0


def wait_for_approval(config: ExperimentConfig, folder: Path, is_stopped: Callable[[], bool]) -> str | None:
    """Block until the experiment may start; why it may not, or None.

    What was approved once stays approved when it is resumed; what was rejected is asked anew.
    """
    if config.budget is None or not config.budget.needs_approval or is_approved(folder):
        return None
    ask_approval(folder, about=config.name)
    get_logger(__name__).warning("waiting for an approval: evsys approve %s (or --reject), or on the dashboard", folder)
    askers, asked = _remote_askers(config), 0.0
    while not is_stopped():
        one = read_approvals(read_events(folder))[""]
        if one.state in (APPROVED, REJECTED):
            by = f" by {one.by}" if one.by else ""
            why = f": {one.reason}" if one.reason else ""
            return None if one.state == APPROVED else f"rejected{by}{why}"
        if askers and time.monotonic() - asked > _ASK_S:
            asked = time.monotonic()
            _ask_elsewhere(askers, folder)
        time.sleep(_POLL_S)
    return "stopped before it was approved"


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
        except (Exception, SystemExit) as error:  # user code may call sys.exit
            get_logger(__name__).warning("callback '%s' failed: %s: %s", asker.name, type(error).__name__, error)
            continue
        # Somebody may have decided here while the answer was on its way.
        if word is not None and list_awaited(folder):
            approve, reason, author = word
            decide_approval(folder, approve=approve, reason=reason, author=author)
