"""Variations of a config for `--steps` and `--dry-run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...config import BackendConfig, BenchmarkEntry, ExperimentConfig, LogStoreSpec, RunConfig
from ...config.metadata import BASE_MODEL
from ...errors import ConfigError, Problem
from ...log import get_logger
from ...registry import config_model, get_algorithm

_DRY_RUN_STEPS = 2
DRY_RUN_ROWS = 4
_MOCK = BackendConfig(kind="mock", params={"context_length": 1 << 20})
"""The mock model has one token per byte, so it needs a longer context to fit the rows of a real model."""
DISABLED_IN_DRY_RUN = {
    "trackio_logger": {"enabled": False},
    "wandb_logger": {"mode": "disabled"},
    "tensorboard_logger": {"log_dir": "logs/tensorboard_logger"},
}
"""Callbacks that write outside the run's folder -> the params that stop that."""


def with_steps(config: ExperimentConfig, steps: int) -> ExperimentConfig:
    """Every run trained for exactly `steps` steps."""
    for run in config.all_runs():
        for kind in _without_steps(run):
            hint = "Leave --steps out, and set the params that the algorithm has."
            message = f"--steps sets max_steps, which the algorithm '{kind}' of run '{run.name}' does not have"
            raise ConfigError(Problem(message, hint=hint))
    return _each_run(config, lambda run: run.with_params(lambda kind: _keep_known(kind, {"max_steps": steps})))


def as_dry_run(config: ExperimentConfig, *, steps: int | None = None) -> ExperimentConfig:
    """Every run for a few steps on the mock backend, scored on a few rows, recorded only below `dry/`."""
    config = with_steps(config, steps) if steps else config
    for run in config.all_runs():
        for kind in _without_steps(run):
            get_logger(__name__).warning("'%s' has no max_steps, so run '%s' is run in full", kind, run.name)

    # `max_length` counts tokens of the real model.
    changes = {"max_steps": steps or _DRY_RUN_STEPS, "max_length": None}

    def shorten_run(run: RunConfig) -> RunConfig:
        rows = min(run.eval.n_samples or DRY_RUN_ROWS, DRY_RUN_ROWS)
        update = {
            "backend": run.backend if run.backend.kind == "mock" else _MOCK,
            "eval": run.eval.model_copy(update={"n_samples": rows, "inference": None}),
            # The mock model cannot load weights of the real one.
            "model": run.model.model_copy(update={"load_checkpoint_path": None, "init_from_checkpoint": None}),
        }
        return run.with_params(lambda kind: _keep_known(kind, changes)).model_copy(update=update)

    local = {
        "output_dir": str(Path(config.output_dir) / "dry"),
        "search": None,  # a few steps give nothing to compare
        "log_store": LogStoreSpec(),
        "callbacks": [
            spec.model_copy(update={"params": {**spec.params, **DISABLED_IN_DRY_RUN.get(spec.kind, {})}})
            for spec in config.callbacks
        ],
        "metadata": config.metadata.model_copy(
            update={"benchmark": [_shorten_entry(entry) for entry in config.metadata.benchmark]}
        ),
    }
    return _each_run(config, shorten_run).model_copy(update=local)


def _shorten_entry(entry: BenchmarkEntry) -> BenchmarkEntry:
    """A few tasks, and only the untrained base as a baseline."""
    tasks = min(entry.n_tasks or DRY_RUN_ROWS, DRY_RUN_ROWS)
    return entry.model_copy(update={"n_tasks": tasks, "models": [name for name in entry.models if name == BASE_MODEL]})


def _keep_known(kind: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that the algorithm has a param for."""
    model = config_model(get_algorithm(kind))
    return {name: value for name, value in changes.items() if model is not None and name in model.model_fields}


def _without_steps(run: RunConfig) -> list[str]:
    """The kinds among the run's recipes that take no `max_steps`."""
    return [stage.kind for stage in run.stages() if not _keep_known(stage.kind, {"max_steps": 1})]


def _each_run(config: ExperimentConfig, change: Callable[[RunConfig], RunConfig]) -> ExperimentConfig:
    runs = [change(run) for run in config.all_runs()]
    return config.model_copy(update={"run": None, "runs": runs, "matrix": None, "base_run": None})
