"""Learning-rate schedules: a factor between 0 and 1 for each step, applied to the peak rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

type ScheduleKind = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Warm-up from zero, then constant, or a decay to `final_fraction` of the peak at the last step."""

    kind: ScheduleKind = "linear"
    warmup_steps: int = 0
    final_fraction: float = 0.0

    def factor(self, step: int, total_steps: int) -> float:
        """Multiplier of the peak rate at `step`, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.kind == "constant":
            return 1.0
        # The first step trains at the peak, and no step at exactly the end of the decay: none is wasted at rate 0.
        progress = (step - self.warmup_steps) / max(total_steps - self.warmup_steps, 1)
        shape = 1.0 - progress if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.final_fraction + (1.0 - self.final_fraction) * shape
