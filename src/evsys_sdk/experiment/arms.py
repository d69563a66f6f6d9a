"""Config -> arms: every run, once per seed."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import ExperimentConfig, RunConfig


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


def _repeat(run: RunConfig, repeat: int, config: ExperimentConfig) -> Arm:
    seed = (run.seed if config.base_seed is None else config.base_seed) + repeat
    name = run.name if config.n_repeats == 1 else f"{run.name}__seed{seed}"
    return Arm(run.model_copy(update={"seed": seed, "name": name}), repeat)
