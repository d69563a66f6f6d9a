"""Config -> arms: every run, once per seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...config import ExperimentConfig, Hypothesis, MatrixSpec, RunConfig
from ...errors import ConfigError, Problem
from ...record.layout import RESERVED_NAMES


@dataclass(frozen=True)
class Arm:
    """One run with one seed: the unit that is trained."""

    run: RunConfig
    repeat: int = 0
    of_run: str = ""
    """Name of the run in the config, shared by all its seeds."""

    @property
    def name(self) -> str:
        """Its name in the record, and of its folder."""
        return self.run.name

    @property
    def seed(self) -> int:
        return self.run.seed

    @cached_property
    def id(self) -> str:
        """Hash of everything that decides what is trained; equal ids are equal work."""
        content = json.dumps(self.run.model_dump(mode="json", exclude={"name", "tags"}), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def expand_arms(config: ExperimentConfig) -> list[Arm]:
    """All arms in training order; repeats of a run differ only in seed and name."""
    return [repeat_run(run, repeat, config) for run in config.all_runs() for repeat in range(_repeats(run, config))]


def first_arms(config: ExperimentConfig) -> list[Arm]:
    """The arms that are trained in any case: all, or the seeds before the first interim analysis."""
    looks = config.planned_looks
    return [arm for arm in expand_arms(config) if not looks or arm.repeat < looks[0]]


def _repeats(run: RunConfig, config: ExperimentConfig) -> int:
    """The number of seeds of a run; a claim may set another number for its baseline."""
    claim = config.metadata.hypothesis
    if isinstance(claim, Hypothesis) and claim.baseline_repeats is not None and run.name == claim.baseline:
        return claim.baseline_repeats
    return config.n_repeats


def repeat_run(run: RunConfig, repeat: int, config: ExperimentConfig) -> Arm:
    """A run with the seed of one of its repeats."""
    seed = (run.seed if config.base_seed is None else config.base_seed) + repeat
    # `baseline_repeats` adds seeds to a run that would have one.
    name = run.name if config.n_repeats == 1 and repeat == 0 else f"{run.name}__seed{seed}"
    return Arm(run.model_copy(update={"seed": seed, "name": name}), repeat, run.name)


def folder_problems(arms: Sequence[Arm]) -> list[Problem]:
    """Arms that would share a folder, on this or another file system."""
    problems: list[Problem] = []
    owners: dict[str, str] = dict.fromkeys(RESERVED_NAMES, "the record of the experiment itself")
    for arm in arms:
        # On many file systems `A` and `a` are the same folder.
        if owner := owners.get(arm.name.casefold()):
            message = f"this run has the same folder as {owner}"
            problems.append(Problem(message, "run.name", arm.name, "Rename the run."))
        owners.setdefault(arm.name.casefold(), f"run '{arm.name}'")
    return problems


@dataclass(frozen=True, slots=True)
class Sweep:
    """A matrix in Python: one run for each combination of values.

    Experiment(load_yaml("config.yaml"), sweep=Sweep({"algorithm.params.learning_rate": [1e-4, 1e-3]})).run()
    """

    axes: Mapping[str, Sequence[Any]]
    """Dotted path into the run -> the values to try."""
    name_template: str | None = None
    """Names of the runs, with `{dotted.path}` and `{base}`."""

    def over(self, config: ExperimentConfig) -> ExperimentConfig:
        """The experiment with one run for each combination."""
        if config.run is None:
            hint = "Give a config with `run`, or write the axes into its `matrix`."
            raise ConfigError(Problem("a Sweep varies a single run, and this config has several", hint=hint))
        axes = {path: list(values) for path, values in self.axes.items()}
        base = config.run.model_dump(mode="json", exclude_unset=True)
        matrix = MatrixSpec(base_run=base, axes=axes, name_template=self.name_template)
        return config.model_copy(update={"run": None, "matrix": matrix}).expanded()
