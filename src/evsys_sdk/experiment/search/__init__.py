"""How the arms of an experiment share its work: every run in full, or more for those that score well on val.

decided     seeds look by look, until the claim is decided
allocation  the contract, the mark of an arm that was not trained to its end, and the plain case: every arm in full
halving     all arms a little, the best ones longer, the best of those to the end
racing      more seeds for the leaders, until their order is clear
objective   what arms are compared by, where the record has it, and how long a run will be

    allocation = allocation_for(config, arms, folder)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...config import ExperimentConfig
from ...config.search import SearchSpec
from ...errors import Problem
from ...spend.ledger import limits_anything
from ..arms.arm import Arm, folder_problems, repeat_run
from .allocation import Allocation, DrawnArms, EveryArm, mark_stopped
from .decided import UntilDecided, judge_look
from .halving import Halving, rungs_of
from .objective import (
    Objective,
    final_scores,
    objective_of,
    pause_every,
    plan_steps,
    read_curve,
    read_progress,
    step_problems,
)
from .racing import Racing, RacingRules

__all__ = ["allocation_for", "mark_stopped", "search_problems"]


def allocation_for(config: ExperimentConfig, arms: Sequence[Arm], experiment_dir: Path) -> Allocation:
    """Which of the arms are trained and how far, as the config asks."""
    search = config.search
    if config.planned_looks:
        return UntilDecided(arms, config.planned_looks, lambda trained: judge_look(experiment_dir, trained))
    if search is None:
        return EveryArm(arms, in_rounds=limits_anything(config.budget))
    found: Allocation = DrawnArms(arms, search.seed) if search.kind == "random" else EveryArm(arms)
    if not search.compares:
        return found
    objective = objective_of(config)
    if search.kind == "halving":
        found = _make_halving(config, arms, objective, experiment_dir)
    if search.race is None:
        return found
    runs = {run.name: run for run in config.all_runs()}
    return Racing(
        found,
        RacingRules.of(search.race, config),
        objective,
        seeded=lambda run, repeat: repeat_run(runs[run], repeat, config),
        scores=lambda arm: final_scores(experiment_dir / arm.name, objective),
    )


def search_problems(config: ExperimentConfig) -> list[Problem]:
    """What is wrong with a search that is well-formed as such, before anything is spent."""
    search = config.search
    if search is None:
        return []
    problems = step_problems(config, objective_of(config)) if search.kind == "halving" else []
    if search.race is not None:
        seeds = max(search.race.max_seeds, config.n_repeats)
        racing = [repeat_run(run, repeat, config) for run in config.all_runs() for repeat in range(seeds)]
        problems += folder_problems(racing)
    return problems


def _finalists(search: SearchSpec) -> int:
    # A race is between runs that were trained to their end, so that a halving must leave as many.
    return max(search.finalists, search.race.top if search.race is not None else 1)


def _make_halving(config: ExperimentConfig, arms: Sequence[Arm], objective: Objective, experiment_dir: Path) -> Halving:
    search = config.search
    assert search is not None
    lengths = plan_steps(config)
    keep = _finalists(search)
    rungs = rungs_of(
        {arm.name: lengths[arm.of_run] for arm in arms},
        every={arm.name: pause_every(arm.run, objective) for arm in arms},
        eta=search.eta,
        keep=keep,
        shares=search.rungs,
    )
    return Halving(
        arms,
        rungs,
        objective,
        lambda arm: read_curve(experiment_dir / arm.name, objective),
        search.eta,
        keep,
        lambda arm, step: read_progress(experiment_dir / arm.name, step),
    )
