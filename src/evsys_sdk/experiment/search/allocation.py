"""Which arms are trained: the contract, and the case in which that is known from the start.

The scheduler calls an allocation whenever an arm has ended. Its answer must follow from the results alone, not from the
order or the time in which they came, so that a killed experiment takes the same decisions when it continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...spend.ledger import is_budget_stop
from ..arms.arm import Arm
from ..arms.results import ArmResult


@dataclass(frozen=True, slots=True)
class AllocationDecision:
    """What an allocation has decided, as it is recorded: arms in order, and why."""

    arms: Sequence[Arm]
    notes: Sequence[dict[str, Any]] = ()
    """One record for each choice made so far, oldest first; new ones are written to the journal."""


class Allocation(Protocol):
    """Decides which arms are trained."""

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        """Every arm to train so far, including those that have ended; no more of them means the end.

        Returning the same object as the last time means that nothing is new.
        """
        ...


class EveryArm:
    """Train all arms."""

    def __init__(self, arms: Sequence[Arm], *, in_rounds: bool = False) -> None:
        """`in_rounds`: every run gets its first seed before any gets its second."""
        self._all = AllocationDecision(sorted(arms, key=lambda arm: arm.repeat) if in_rounds else arms)

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        return self._all


class DrawnArms:
    """Train all arms, and record that they were drawn; it was done when the config was expanded."""

    def __init__(self, arms: Sequence[Arm], seed: int) -> None:
        runs = list(dict.fromkeys(arm.of_run for arm in arms))
        note = {"sampled": runs, "seed": seed, "why": f"{len(runs)} runs were drawn with seed {seed}"}
        self._all = AllocationDecision(arms, [note])

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        return self._all


def is_settled(result: ArmResult) -> bool:
    """Whether an arm has ended for good: one that was interrupted continues when the experiment does."""
    if result.status != "cancelled":
        return True
    reason = result.result.notes.stop_reason or ""
    return is_budget_stop(reason) and "this arm" in reason  # its own limit; that of the experiment stops everything


def all_settled(results: Sequence[ArmResult], arms: Sequence[Arm]) -> bool:
    """Whether every one of these arms has ended for good."""
    return {result.name for result in results if is_settled(result)}.issuperset(arm.name for arm in arms)
