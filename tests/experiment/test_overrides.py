"""`--steps` and `--dry`: the same experiment, shorter, and in a rehearsal without cost or traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_algorithm
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.arms.overrides import as_dry_run, with_steps

type Config = Callable[..., ExperimentConfig]


def only_run(config: ExperimentConfig) -> Any:
    [run] = config.all_runs()
    return run


def test_steps_replace_what_the_config_says(config: Config) -> None:
    run = only_run(with_steps(config(params={"max_steps": 500}), 3))
    assert run.algorithm.params == {"max_steps": 3, "batch_size": 3}


def test_steps_reach_every_phase_of_a_combo(config: Config) -> None:
    phases = [{"kind": "sft", "params": {"max_steps": 9}}, {"kind": "dpo"}]
    run = only_run(with_steps(config({"algorithm": {"kind": "combo", "params": {"phases": phases}}}), 3))
    assert [phase["params"]["max_steps"] for phase in run.algorithm.params["phases"]] == [3, 3]


def continual(rows: list[dict[str, Any]]) -> dict[str, Any]:
    data = {"source_kind": "in_memory", "rows": rows}
    stages = [{"name": "a", "data": data}, {"name": "b", "data": data, "params": {"max_steps": 700}}]
    return {"data": None, "continual": {"stages": stages}}


def test_steps_reach_every_stage_of_a_continual_run(config: Config, rows: list[dict[str, Any]]) -> None:
    [result] = Experiment(with_steps(config(continual(rows)), 2)).run().runs
    assert result.metrics["steps"] == 4


def test_every_arm_of_a_matrix_is_shortened(config: Config) -> None:
    base = config().run
    assert base is not None
    swept = config(matrix={"base_run": base.model_dump(), "axes": {"algorithm.params.max_steps": [10, 20]}})
    assert [run.algorithm.params["max_steps"] for run in with_steps(swept, 2).all_runs()] == [2, 2]


def register_stepless() -> None:
    @register_algorithm("stepless")
    class Stepless:
        def train(self, ctx: Any) -> Any:
            from evsys_sdk import RunResult

            return RunResult(ctx.run_id, "completed")


@pytest.mark.parametrize("shorten", [with_steps, lambda config, steps: as_dry_run(config, steps=steps)])
def test_steps_for_an_algorithm_without_max_steps_are_refused_by_name(shorten: Any, config: Config) -> None:
    register_stepless()
    with pytest.raises(
        ConfigError, match=r"--steps sets max_steps, which the algorithm 'stepless' of run 'r' does not"
    ):
        shorten(config({"algorithm": {"kind": "stepless"}}), 3)
    phases = [{"kind": "sft"}, {"kind": "stepless"}]
    with pytest.raises(ConfigError, match="'stepless'"):
        shorten(config({"algorithm": {"kind": "combo", "params": {"phases": phases}}}), 3)


def test_a_rehearsal_of_an_algorithm_without_max_steps_runs_it_in_full_and_reports_it(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    register_stepless()
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        rehearsed = as_dry_run(config({"algorithm": {"kind": "stepless"}}))
    assert "'stepless' has no max_steps" in caplog.text
    assert Experiment(rehearsed).run().exit_code == 0


def test_an_algorithm_of_the_users_own_may_have_params_called_phases(config: Config) -> None:
    @register_algorithm("moon")
    class Moon(SFT):
        class Config(SFT.Config):
            phases: int = 4

    run = only_run(with_steps(config({"algorithm": {"kind": "moon", "params": {"phases": 8}}}), 3))
    assert run.algorithm.params == {"phases": 8, "max_steps": 3}


def test_a_rehearsal_trains_a_few_steps_on_the_mock_backend_from_fresh_weights(
    config: Config, rows: list[dict[str, Any]]
) -> None:
    model = {"name": "big", "load_checkpoint_path": "s3://somewhere"}
    evaluation = {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}
    original = config({"model": model, "eval": evaluation, "backend": {"kind": "tinker", "params": {"x": 1}}})
    run = only_run(as_dry_run(original))
    assert (run.backend.kind, run.model.load_checkpoint_path, run.eval.n_samples) == ("mock", None, 4)
    assert run.algorithm.params["max_steps"] == 2
    result = Experiment(as_dry_run(original)).run()
    assert (result.exit_code, result.runs[0].metrics["steps"]) == (0, 2)


def test_rows_that_fit_the_real_model_fit_the_rehearsed_one(config: Config) -> None:
    """Tokens of the mock model are bytes, so lengths in the config mean something else to it."""
    long = [{"messages": [{"role": "user", "content": "q" * 9000}, {"role": "assistant", "content": "a" * 9000}]}]
    original = config({"data": {"source_kind": "in_memory", "rows": long}, "backend": {"kind": "tinker"}})
    assert original.run is not None
    params = {**original.run.algorithm.params, "max_length": 4096, "batch_size": 1}
    limited = original.model_copy(
        update={
            "run": original.run.model_copy(
                update={"algorithm": original.run.algorithm.model_copy(update={"params": params})}
            )
        }
    )
    result = Experiment(as_dry_run(limited)).run()
    assert result.exit_code == 0, result.runs[0].error


def test_a_rehearsal_leaves_nothing_outside_its_own_folder(config: Config, tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    original = config(
        log_store={"kind": "jsonl", "params": {"log_dir": str(outside / "logs")}},
        callbacks=[
            {"kind": "tensorboard_logger", "params": {"log_dir": str(outside / "events")}},
            {"kind": "local_logger"},
        ],
    )
    result = Experiment(as_dry_run(original)).run()
    assert result.exit_code == 0, result.runs[0].error
    assert result.path == tmp_path / "outputs" / "dry" / "e"
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["dry"]


def test_a_rehearsal_uploads_nothing(config: Config) -> None:
    dry_run = as_dry_run(config(callbacks=[{"kind": "wandb_logger", "params": {"project": "p"}}]))
    assert dry_run.callbacks[0].params == {"project": "p", "mode": "disabled"}
