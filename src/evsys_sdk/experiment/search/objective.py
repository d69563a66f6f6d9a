"""What arms are compared by while they compete: one metric of a val benchmark, as the record of a run has it.

Scores come from the disk and never from an arm's result: an arm that was trained further has another result, and what
it scored on the way must stay what it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...config import ExperimentConfig, RunConfig
from ...config.search import full_names, success_of, val_metrics
from ...errors import EvsysError, Problem
from ...protocols import traits_of
from ...record.run_files.checkpoints import CheckpointLog
from ...registry import list_metrics
from ..arms.arm import Arm
from ..arms.recipe import build_algorithm, count_steps
from ..arms.rows import row_reader

type Curve = Mapping[int, float]
"""Step -> score."""
type CurveOf = Callable[[Arm], Curve]
"""What an arm has scored so far."""
type ProgressOf = Callable[[Arm, int], float]
"""How an arm was doing on its training data after a step; less is better, and 0 where nothing is known."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric of a val benchmark, and which way is better."""

    metric: str
    """Plain name, e.g. `pass@1`."""
    label: str
    """Label of the benchmark."""
    mode: Literal["max", "min"] = "max"
    every: int = 1
    """Steps between two scorings."""

    @property
    def name(self) -> str:
        """As it is logged."""
        return f"val/{self.metric}" if self.label in ("", "val") else f"val/{self.label}/{self.metric}"

    @property
    def sign(self) -> int:
        return 1 if self.mode == "max" else -1


def objective_of(config: ExperimentConfig) -> Objective:
    """The metric that the search of a config asks for, or the success metric, or the first there is."""
    search, success = config.search, success_of(config.metadata)
    assert search is not None
    candidates = [(entry, _check_known(name, entry.metrics)) for entry, name in val_metrics(config.metadata)]
    wanted = search.metric or (success.name if success else None)
    entry, metric = next(
        ((entry, name) for entry, name in candidates if wanted in full_names(entry, name)), candidates[0]
    )
    default = success.mode if success and success.name in full_names(entry, metric) else "max"
    return Objective(metric, entry.label or "", search.mode or default, entry.run_every or 1)


def _check_known(name: str, listed: list[str]) -> str:
    """An entry that lists no metrics is scored by the success metric only if that can be computed."""
    return name if listed or name in list_metrics() else "pass@1"


def read_curve(run_dir: Path, objective: Objective) -> Curve:
    """Every complete score that a run has on disk."""
    found = CheckpointLog.in_dir(run_dir).scores()
    return {
        step: float(scores[objective.name])
        for step, scores in sorted(found.items())
        # Step 0 is the model before training, which says nothing about a recipe.
        if step > 0 and math.isfinite(scores.get(objective.name, math.nan))
    }


def read_progress(run_dir: Path, step: int) -> float:
    """Minus the mean reward of the batch where a recipe has one, else its loss."""
    nothing: dict[str, float] = {}
    metrics = next((one.metrics for one in CheckpointLog.in_dir(run_dir).read() if one.next_step == step), nothing)
    return -metrics["reward/mean"] if "reward/mean" in metrics else metrics.get("loss", 0.0)


# How many steps a run will take, told before it starts: on the way to an unknown end nothing can be compared.


def plan_steps(config: ExperimentConfig) -> dict[str, int]:
    """The length of each run by name; runs whose length no one knows are left out."""
    return {name: steps for name, steps in _lengths(config).items() if isinstance(steps, int)}


def step_problems(config: ExperimentConfig, objective: Objective) -> list[Problem]:
    """Runs that cannot be compared on their way."""
    problems: list[Problem] = []
    runs = {run.name: run for run in config.all_runs()}
    for name, steps in _lengths(config).items():
        if not isinstance(steps, int):
            hint = "Set max_steps in its algorithm (in every phase or stage of it), or use kind: random."
            problems.append(Problem(f"halving must know how long run '{name}' is: {steps}", "search.kind", hint=hint))
        elif steps <= (first := pause_every(runs[name], objective)):
            hint = "Lower run_every, train longer, or use kind: random."
            message = f"run '{name}' has {steps} steps and can first be compared after {first}, which is too late"
            problems.append(Problem(message, "search.kind", hint=hint))
    return problems


def pause_every(run: RunConfig, objective: Objective) -> int:
    """How many steps apart a run can pause with a fresh score: where it is scored, and between two of its rollouts."""
    return math.lcm(objective.every, traits_of(build_algorithm(run)).updates_per_batch)


def _lengths(config: ExperimentConfig) -> dict[str, int | str]:
    """For each run its steps, or why they are not known."""

    load = row_reader(config.data_store)  # the runs of a search mostly share their data
    found: dict[str, int | str] = {}
    for run in config.all_runs():
        try:
            steps = count_steps(run, build_algorithm(run), load)
        except (EvsysError, OSError) as error:
            found[run.name] = str(error).rstrip(".")
            continue
        found[run.name] = steps if steps is not None else f"'{run.algorithm.kind}' does not say before it trains"
    return found
