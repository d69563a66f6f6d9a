"""Every arm that was drawn, in full. Drawing is done when the config is expanded, so that the record is plain."""

from __future__ import annotations

from collections.abc import Sequence

from ..allocation import ArmRequest, Decision, Outcome
from ..arms.arm import Arm


class DrawnArms:
    """Train all arms in full, and record that they were drawn."""

    def __init__(self, arms: Sequence[Arm], seed: int) -> None:
        runs = list(dict.fromkeys(arm.of_run for arm in arms))
        note = {"sampled": runs, "seed": seed, "why": f"{len(runs)} runs were drawn with seed {seed}"}
        self._all = Decision([ArmRequest(arm) for arm in arms], [note])

    def decide(self, outcomes: Sequence[Outcome]) -> Decision:
        return self._all
