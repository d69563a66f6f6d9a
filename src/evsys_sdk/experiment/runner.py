"""Train and score one arm. `train_and_score` is the whole flow of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, SupportsFloat

from ..config import ExperimentConfig
from ..errors import TrainingError, show
from ..log import get_logger
from ..protocols import Algorithm, RunContext, RunResult
from ..spend.meter import BudgetMeter
from ..training.callback import Callback, RunControl
from .arms.arm import Arm
from .arms.recipe import build_algorithm, build_backend, prepare_backend
from .arms.results import lift_notes
from .arms.rows import RowLoader
from .observation import RunObservation, observe_run
from .run_services import add_benchmarks, add_evaluator, offer_services, open_stores, score_if_missing


@dataclass(frozen=True, slots=True)
class ArmOptions:
    """Where and how an arm is run; the arm itself says what is trained."""

    run_dir: Path
    resume: bool = False
    callbacks: Sequence[Callable[[], Callback]] = ()
    """Factories of the arm's callbacks."""
    control: RunControl = field(default_factory=RunControl)
    meter: BudgetMeter | None = None
    """Counts what the arm spends, and stops it at the budget."""


def run_arm(arm: Arm, config: ExperimentConfig, options: ArmOptions) -> RunResult:
    """Train and score one arm; an error becomes a failed result."""
    with observe_run(arm, options) as observed:
        observed.result = train_and_score(arm, config, options, observed)
    return observed.result


def train_and_score(arm: Arm, config: ExperimentConfig, options: ArmOptions, observed: RunObservation) -> RunResult:
    """Load rows, build recipe and backend, plan the scoring, train, and score what training did not."""
    run, run_dir = arm.run, options.run_dir
    attempt = observed.begin()
    data_store, log_store = open_stores(config, run_dir, observed.observers)
    load_rows = RowLoader(data_store, run_dir)
    rows = load_rows(run.data) if run.data else []
    algorithm = build_algorithm(run)
    backend = build_backend(run, algorithm)
    with ExitStack() as ending:
        handles = observed.meter(ending.enter_context(prepare_backend(backend, run, algorithm, run_dir)))
        services = offer_services(run, handles, observed.observers, options, load_rows, attempt)
        evaluator, services = add_evaluator(run, rows, services, run_dir)
        benchmarks, services = add_benchmarks(config, run, algorithm, backend, services, run_dir)
        if benchmarks is not None:
            # Closed before the backend is torn down, so that no scoring samples from a closed backend.
            ending.callback(benchmarks.close)
        extras: dict[str, Any] = {"train_rows": rows, "n_train_rows": len(rows), "backend_handles": handles}
        extras |= {"model_name": run.model.name, "tags": run.tags}
        ctx = RunContext(arm.name, run_dir, config, data_store, log_store, backend, extras, services)
        info = observed.start(ctx, algorithm, benchmarks, load_rows)
        if benchmarks is not None and not info.steps_done:
            # Baselines are scored before the first step, so a run with a checkpoint has them on record.
            benchmarks.score_baselines()
        result = train(algorithm, ctx)
        score_if_missing(evaluator, result)
        if benchmarks is not None:
            benchmarks.finish(result)
        return result


def train(algorithm: Algorithm, ctx: RunContext) -> RunResult:
    """Call the recipe's `train` and check what it returns."""
    result: Any = algorithm.train(ctx)
    if not isinstance(result, RunResult):
        name = getattr(algorithm, "name", type(algorithm).__name__)
        raise TrainingError(f"train() of the algorithm '{name}' returned {show(result)}. Return a RunResult.")
    return lift_notes(replace(result, metrics=_numbers(result.metrics, algorithm)))


def _numbers(metrics: dict[str, Any], algorithm: Algorithm) -> dict[str, float]:
    """The metrics that are finite numbers; the others are reported and dropped."""
    numbers: dict[str, Any] = {
        name: value for name, value in metrics.items() if isinstance(value, SupportsFloat) and isfinite(value)
    }
    kind = getattr(algorithm, "name", type(algorithm).__name__)
    for name in metrics.keys() - numbers.keys():
        message = "the metric '%s' of algorithm '%s' is not a finite number (got %s) and is left out. Return a number."
        get_logger(__name__).warning(message, name, kind, show(metrics[name]))
    return numbers
