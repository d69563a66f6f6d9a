"""How many steps a run will take, told before it starts: on the way to an unknown end nothing can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

from ...config import ExperimentConfig, RunConfig
from ...errors import EvsysError, Problem
from ...protocols import traits_of
from ...registry import get_data_store
from ..recipe import build_algorithm
from ..rows import load_transformed
from .objective import Objective


def planned_steps(config: ExperimentConfig) -> dict[str, int]:
    """The length of each run by name; runs whose length nobody knows are left out."""
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

    @cache  # the runs of a search mostly share their data
    def rows_of(run_data: str) -> list[Any]:
        data = next(run.data for run in config.all_runs() if _key(run) == run_data)
        if data is None:
            return []
        store: Any = get_data_store(config.data_store.kind)(**config.data_store.params)
        return load_transformed(data, store)[0]

    found: dict[str, int | str] = {}
    for run in config.all_runs():
        try:
            steps = _length(run, lambda run=run: rows_of(_key(run)))
        except (EvsysError, OSError) as error:
            found[run.name] = str(error).rstrip(".")
            continue
        found[run.name] = steps if steps is not None else f"'{run.algorithm.kind}' does not say before it trains"
    return found


def _key(run: RunConfig) -> str:
    return json.dumps(run.data.model_dump(mode="json"), sort_keys=True, default=repr) if run.data is not None else ""


def _length(run: RunConfig, rows: Callable[[], list[Any]]) -> int | None:
    traits = traits_of(build_algorithm(run))
    if traits.max_steps is not None or traits.planned_steps is None:
        return traits.max_steps
    return traits.planned_steps(rows())
