"""Choose the arms that are trained: all, a random sample, or seeds until the claim is decided.

decided     seeds in rounds, until an interim analysis decides the claim
allocation  the contract, and the allocation of all arms

    allocation = allocation_for(config, arms, folder)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...config import ExperimentConfig
from ...spend.ledger import limits_anything
from ..arms.arm import Arm
from .allocation import Allocation, EveryArm, describe_draw
from .decided import UntilDecided, judge_look

__all__ = ["allocation_for"]


def allocation_for(config: ExperimentConfig, arms: Sequence[Arm], experiment_dir: Path) -> Allocation:
    """The allocation that the config sets."""
    search = config.search
    if config.planned_looks:
        return UntilDecided(arms, config.planned_looks, lambda trained: judge_look(experiment_dir, trained))
    if search is not None:
        return EveryArm(arms, [describe_draw(arms, search.seed)] if search.kind == "random" else ())
    # Within a budget, every run gets its first seed before any gets its second.
    return EveryArm(sorted(arms, key=lambda arm: arm.repeat) if limits_anything(config.budget) else arms)
