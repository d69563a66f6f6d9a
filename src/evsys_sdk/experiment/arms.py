"""Config -> arms: every run, once per seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import ExperimentConfig, RunConfig
from ..errors import Problem
from .record_dir import CONFIG_FILE


@dataclass(frozen=True, slots=True)
class Arm:
    """One run with one seed: the unit that is trained."""

    run: RunConfig
    repeat: int = 0

    @property
    def id(self) -> str:
        return self.run.name


def expand_arms(config: ExperimentConfig) -> list[Arm]:
    """All arms in the order they are trained; repeats of a run differ only in seed and name."""
    return [_repeat(run, repeat, config) for run in config.all_runs() for repeat in range(config.n_repeats)]


def folder_problems(arms: Sequence[Arm]) -> list[Problem]:
    """Arms whose folders would get into each other's way, on this or on another machine's file system."""
    problems: list[Problem] = []
    taken = {CONFIG_FILE: "the record of the experiment itself"}
    for arm in arms:
        # Many file systems take `A` and `a` for the same folder.
        if owner := taken.get(arm.id.casefold()):
            message = f"the folder of this run is also that of {owner}"
            problems.append(Problem(message, "run.name", arm.id, "Rename the run."))
        taken.setdefault(arm.id.casefold(), f"run '{arm.id}'")
    return problems


def _repeat(run: RunConfig, repeat: int, config: ExperimentConfig) -> Arm:
    seed = (run.seed if config.base_seed is None else config.base_seed) + repeat
    name = run.name if config.n_repeats == 1 else f"{run.name}__seed{seed}"
    return Arm(run.model_copy(update={"seed": seed, "name": name}), repeat)
