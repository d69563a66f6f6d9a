"""Variations of a config that the command line asks for: fewer steps, or a rehearsal that spends nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config import BackendConfig, ExperimentConfig, RunConfig

_REHEARSED_STEPS = 2
_REHEARSED_ROWS = 4


def with_steps(config: ExperimentConfig, steps: int) -> ExperimentConfig:
    """Every run trained for exactly `steps` steps."""

    def limited(run: RunConfig) -> dict[str, Any]:
        return {"algorithm": _limited(run, steps)}

    return _each_run(config, limited)


def rehearsal(config: ExperimentConfig, *, steps: int | None = None) -> ExperimentConfig:
    """Every run for a few steps on the mock backend, scored on a few rows, recorded below `dry/`."""

    def rehearsed(run: RunConfig) -> dict[str, Any]:
        return {
            "algorithm": _limited(run, steps or _REHEARSED_STEPS),
            "backend": BackendConfig(kind="mock"),
            "eval": run.eval.model_copy(update={"n_samples": _REHEARSED_ROWS, "inference": None}),
            "model": run.model.model_copy(update={"load_checkpoint_path": None, "init_from_checkpoint": None}),
        }

    return _each_run(config, rehearsed).model_copy(update={"output_dir": str(Path(config.output_dir) / "dry")})


def _limited(run: RunConfig, steps: int) -> Any:
    """The recipe with `max_steps` set, in every phase where it has phases."""
    params = dict(run.algorithm.params)
    if "phases" in params:
        params["phases"] = [
            {**phase, "params": {**phase.get("params", {}), "max_steps": steps}} for phase in params["phases"]
        ]
    else:
        params["max_steps"] = steps
    return run.algorithm.model_copy(update={"params": params})


def _each_run(config: ExperimentConfig, change: Callable[[RunConfig], dict[str, Any]]) -> ExperimentConfig:
    runs = [run.model_copy(update=change(run)) for run in config.all_runs()]
    return config.model_copy(update={"run": None, "runs": runs, "matrix": None, "base_run": None})
