"""The contract of allocations, which choose the arms to train, and the fixed ones.

The scheduler calls an allocation whenever an arm has ended. The decision must depend on the results alone, not on their
order or time, so that a killed experiment makes the same decisions when it is resumed.
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
    """The arms to train, in order, and the reasons for the record."""

    arms: Sequence[Arm]
    notes: Sequence[dict[str, Any]] = ()
    """One note for each decision so far, oldest first; new ones are written to the journal."""


class Allocation(Protocol):
    """Chooses the arms that are trained."""

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        """All arms to train so far, including those that have ended; the experiment ends when all have ended.

        Return the same object as before if nothing has changed.
        """
        ...


class EveryArm:
    """Trains all arms."""

    def __init__(self, arms: Sequence[Arm], notes: Sequence[dict[str, Any]] = ()) -> None:
        self._all = AllocationDecision(arms, notes)

    def decide(self, results: Sequence[ArmResult]) -> AllocationDecision:
        return self._all


def describe_draw(arms: Sequence[Arm], seed: int) -> dict[str, Any]:
    """The note about runs that were drawn when the config was expanded."""
    runs = list(dict.fromkeys(arm.of_run for arm in arms))
    return {"sampled": runs, "seed": seed, "why": f"{len(runs)} runs were drawn with seed {seed}"}


def is_settled(result: ArmResult) -> bool:
    """Whether an arm has ended for good; an interrupted one continues when the experiment is resumed."""
    if result.status != "cancelled":
        return True
    reason = result.result.notes.stop_reason or ""
    return is_budget_stop(reason) and "this arm" in reason  # the limit of the arm, not of the experiment


def all_settled(results: Sequence[ArmResult], arms: Sequence[Arm]) -> bool:
    """Whether all of these arms have ended for good."""
    return {result.name for result in results if is_settled(result)}.issuperset(arm.name for arm in arms)
