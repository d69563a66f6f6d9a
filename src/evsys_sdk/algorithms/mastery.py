"""Notices when there is nothing left to learn: every attempt earns the most that any attempt has earned.

Batches then hold no differences to learn from. Without this a run that has succeeded would end like one that never got
a reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Mastery:
    """The range of rewards seen, and for how many batches in a row all of them were at its upper end."""

    patience: int = 3
    lowest: float = math.inf
    highest: float = -math.inf
    in_a_row: int = 0

    def reached(self, rewards: Sequence[float]) -> bool:
        """Take note of a batch; says whether enough of them in a row were perfect."""
        if rewards:
            self.lowest, self.highest = min(self.lowest, *rewards), max(self.highest, *rewards)
            # Where nothing but one reward was ever seen, nobody knows whether it is a good one.
            perfect = min(rewards) == self.highest > self.lowest
            self.in_a_row = self.in_a_row + 1 if perfect else 0
        return self.in_a_row >= self.patience

    def state(self) -> dict[str, float]:
        """What `restore` needs after a resume, as finite numbers."""
        return {key: value for key, value in asdict(self).items() if math.isfinite(value)}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state."""
        self.lowest, self.highest = state.get("lowest", math.inf), state.get("highest", -math.inf)
        self.in_a_row = int(state.get("in_a_row", 0))
