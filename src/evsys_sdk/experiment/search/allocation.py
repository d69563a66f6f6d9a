"""Which arms are trained, and how far: the contract of searches, and the plain case in which all are trained in full.

An allocation is asked again whenever an arm has ended. Its answer must follow from the outcomes alone, not from the
order or the time in which they came, so that a killed experiment takes the same decisions when it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..arms.arm import Arm
from ..arms.results import ArmResult


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """Train this arm, to its end or up to a step."""

    arm: Arm
    until_step: int | None = None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.arm.name, self.until_step


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request."""

    request: ArmRequest
    result: ArmResult


@dataclass(frozen=True, slots=True)
class Decision:
    """What an allocation has decided, as it is recorded: requests in order, and why."""

    requests: Sequence[ArmRequest]
    notes: Sequence[dict[str, Any]] = ()
    """One record for each choice made so far, oldest first; new ones are written to the journal."""


class Allocation(Protocol):
    """Decides which arms are trained."""

    def decide(self, outcomes: Sequence[Outcome]) -> Decision:
        """Every request so far, including those that are done; no more of them means the end.

        The very same object as the last time says at once that nothing is new.
        """
        ...


class EveryArm:
    """Train all arms in full."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        self._all = Decision([ArmRequest(arm) for arm in arms])

    def decide(self, outcomes: Sequence[Outcome]) -> Decision:
        return self._all


class DrawnArms:
    """Train all arms in full, and record that they were drawn; it was done when the config was expanded."""

    def __init__(self, arms: Sequence[Arm], seed: int) -> None:
        runs = list(dict.fromkeys(arm.of_run for arm in arms))
        note = {"sampled": runs, "seed": seed, "why": f"{len(runs)} runs were drawn with seed {seed}"}
        self._all = Decision([ArmRequest(arm) for arm in arms], [note])

    def decide(self, outcomes: Sequence[Outcome]) -> Decision:
        return self._all
