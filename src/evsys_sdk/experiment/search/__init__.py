"""How the arms of an experiment share its work: every run in full, or more for those that score well on val.

decided     seeds look by look, until the claim is decided
allocation  the contract, the mark of an arm that was not trained to its end, and the plain case: every arm in full
halving     all arms a little, the best ones longer, the best of those to the end
objective   what arms are compared by, where the record has it, and how long a run will be

    allocation = allocation_for(config, arms, folder)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...config import ExperimentConfig
from ...config.search import SearchSpec
from ...errors import Problem
from ...paths import in_project
from ...record.folders import find_attempts
from ...spend.ledger import limits_anything
from ..arms.arm import Arm
from .allocation import Allocation, DrawnArms, EveryArm, mark_stopped
from .decided import UntilDecided, judge_look
from .halving import Halving, rungs_of
from .objective import (
    objective_of,
    pause_every,
    plan_steps,
    read_curve,
    read_progress,
    step_problems,
)

__all__ = ["allocation_for", "mark_stopped", "search_problems"]


def allocation_for(config: ExperimentConfig, arms: Sequence[Arm], experiment_dir: Path) -> Allocation:
    """Which of the arms are trained and how far, as the config asks."""
    search = config.search
    if config.planned_looks:
        return UntilDecided(arms, config.planned_looks, lambda trained: judge_look(experiment_dir, trained))
    if search is None:
        return EveryArm(arms, in_rounds=limits_anything(config.budget))
    if search.kind == "halving":
        return _make_halving(config, search, arms, experiment_dir)
    return DrawnArms(arms, search.seed) if search.kind == "random" else EveryArm(arms)


def search_problems(config: ExperimentConfig) -> list[Problem]:
    """What is wrong with a search that is well-formed as such, before anything is spent."""
    search = config.search
    if search is None:
        return []
    if search.race is not None and not find_attempts(in_project(config.output_dir) / config.name):
        hint = "Remove it. For more seeds, compare the best runs in an experiment with 'until: decided'."
        return [Problem("races between seeds were removed", "search.race", hint=hint)]
    return step_problems(config, objective_of(config)) if search.kind == "halving" else []


def _make_halving(config: ExperimentConfig, search: SearchSpec, arms: Sequence[Arm], experiment_dir: Path) -> Halving:
    objective, lengths = objective_of(config), plan_steps(config)
    rungs = rungs_of(
        {arm.name: lengths[arm.of_run] for arm in arms},
        every={arm.name: pause_every(arm.run, objective) for arm in arms},
        eta=search.eta,
        keep=search.finalists,
        shares=search.rungs,
    )
    return Halving(
        arms,
        rungs,
        objective,
        lambda arm: read_curve(experiment_dir / arm.name, objective),
        search.eta,
        search.finalists,
        lambda arm, step: read_progress(experiment_dir / arm.name, step),
    )
