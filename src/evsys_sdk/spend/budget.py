"""Limits on what an experiment and each of its arms may spend, and which of them is reached.

if reason := exhausted(config.budget, ledger.total()): ...  # before an arm starts
"""

from __future__ import annotations

from ..config.experiment import Limits
from ..record.ledger import Spend

LIMITED = ("usd", "tokens", "wall_s", "gpu_s")
"""What a limit can be set on."""
STOP_PREFIX = "budget: "
"""How the reason of a stop by budget begins."""


def exhausted(limits: Limits | None, spend: Spend) -> str | None:
    """Which limit is reached, e.g. `tokens 10,240 of 10,000`; None while there is something left."""
    for name in LIMITED if limits else ():
        limit, spent = getattr(limits, name), getattr(spend, name)
        if limit is not None and spent >= limit:
            return f"{name} {amount(name, spent)} of {amount(name, limit)}"
    return None


def limits_anything(limits: Limits | None) -> bool:
    """Whether there is a limit at all."""
    return any(getattr(limits, name, None) is not None for name in LIMITED)


def amount(name: str, value: float) -> str:
    """A number of dollars, tokens or seconds as people read it."""
    return f"{value:,.0f}" if name == "tokens" else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


def is_budget_stop(reason: str | None) -> bool:
    """Whether a run was stopped by its budget."""
    return (reason or "").startswith(STOP_PREFIX)
