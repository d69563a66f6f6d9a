"""The mean reward."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar


class MeanReward:
    """Mean reward: the mean over tasks of the mean over their samples."""

    name: ClassVar[str] = "mean_reward"

    def compute(self, task_rewards: Sequence[Sequence[float]]) -> float:
        """Every task counts the same, however often it was sampled."""
        return statistics.fmean(statistics.fmean(rewards) for rewards in task_rewards)
