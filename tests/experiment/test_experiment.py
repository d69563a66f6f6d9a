"""All arms of an experiment: refused before anything runs, or run to their end, each by itself."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, RunResult, register_algorithm, register_callback, run_experiment
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.errors import ConfigError, DataError
from evsys_sdk.experiment import Experiment, ExperimentResult
from evsys_sdk.training.callback import Callback, RunControl, RunInfo

type Config = Callable[..., ExperimentConfig]
type Run = Callable[..., ExperimentResult]


def folders(result: ExperimentResult) -> list[str]:
    return sorted(path.name for path in result.path.iterdir() if path.is_dir())


def test_arms_run_in_order_each_in_its_own_folder(run: Run) -> None:
    result = run(runs=[{"name": "b"}, {"name": "a"}], n_repeats=2)
    assert [run.run_id for run in result.runs] == ["b__seed42", "b__seed43", "a__seed42", "a__seed43"]
    assert folders(result) == ["a__seed42", "a__seed43", "b__seed42", "b__seed43"]
    by_id = {run.run_id: run.metrics for run in result.runs}
    assert by_id["a__seed42"] == by_id["b__seed42"] != by_id["a__seed43"]
    assert result.exit_code == 0


def test_run_experiment_takes_a_config_or_a_file_and_gives_the_results(config: Config, tmp_path: Path) -> None:
    from evsys_sdk import dump_yaml

    loaded = config()
    dump_yaml(loaded, tmp_path / "config.yaml")
    [first] = run_experiment(loaded)
    [second] = run_experiment(tmp_path / "config.yaml")
    [third] = Experiment.from_yaml(str(tmp_path / "config.yaml")).run().runs
    assert first.metrics == second.metrics == third.metrics
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["e", "e.2", "e.3"]


def test_a_matrix_is_expanded(config: Config) -> None:
    base = config().run
    assert base is not None
    matrix = {"base_run": base.model_dump(), "axes": {"algorithm.params.batch_size": [2, 3]}}
    result = Experiment(config(matrix=matrix)).run()
    assert [run.status for run in result.runs] == ["completed", "completed"]
    assert result.runs[0].metrics != result.runs[1].metrics


def test_a_failing_arm_does_not_stop_the_others(run: Run) -> None:
    runs = [{"name": "a"}, {"name": "b", "data": {"path": "nowhere.jsonl"}}, {"name": "c"}]
    result = run(runs=runs, checked=True)
    assert [run.status for run in result.runs] == ["completed", "failed", "completed"]
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"algorithm": {"kind": "sft", "params": {"batch_sise": 2}}}}, "batch_sise"),
        ({"run": {"algorithm": {"kind": "sftt"}}}, "Did you mean 'sft'"),
        ({"launcher": {"kind": "ray"}}, "launcher"),
    ],
    ids=["unknown param", "unknown kind", "unsupported"],
)
def test_what_cannot_run_is_refused_before_anything_does(
    changes: dict[str, Any], message: str, run: Run, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(**changes)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("names", [("Alpha", "alpha"), ("config.json", "b"), ("CONFIG.JSON", "b")])
def test_runs_whose_folders_would_clash_are_refused(names: tuple[str, str], run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this run has the same folder as"):
        run(runs=[{"name": name} for name in names])
    assert not (tmp_path / "outputs").exists()


def test_one_arm_that_stops_early_does_not_stop_the_next(run: Run) -> None:
    stopping = {"kind": "early_stopping", "params": {"metric": "epoch", "mode": "min", "patience": 2}}
    result = run(runs=[{"name": "a"}, {"name": "b"}], callbacks=[stopping])
    assert [run.notes.stop_reason.split(":")[0] for run in result.runs] == ["early_stopping"] * 2
    assert [run.metrics["steps"] for run in result.runs] == [4, 4]
    assert result.exit_code == 0


def test_an_early_stop_at_a_scoring_is_scored_and_saved_once(run: Run, rows: list[dict[str, Any]]) -> None:
    evaluation = {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}
    stopping = {"kind": "early_stopping", "params": {"metric": "eval/exact_match", "mode": "max", "patience": 2}}
    result = run(
        {"eval": evaluation},
        params={"max_steps": 12, "eval_every": 2, "learning_rate": 1e-9},
        callbacks=[stopping, {"kind": "local_logger"}],
    )
    lines = (result.path / "r" / "logs" / "validation" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 2, 4]
    checkpoints = (result.path / "r" / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["name"] for line in checkpoints] == ["step000002", "step000004-final"]
    assert json.loads(checkpoints[-1])["metrics"]["eval/exact_match"] == 0.0


# Resume


class Interrupt(Callback):
    """Asks for a stop once, at a step of a run, the way Ctrl-C does."""

    name = "interrupt"
    at: tuple[str, int] | None = None

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self.run_id = info.run_id

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if Interrupt.at == (self.run_id, step):
            Interrupt.at = None
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def interrupt() -> type[Interrupt]:
    Interrupt.at = None
    register_callback("interrupt")(Interrupt)
    return Interrupt


def test_ctrl_c_stops_cleanly_and_resume_ends_like_an_undisturbed_run(run: Run, interrupt: type[Interrupt]) -> None:
    changes: dict[str, Any] = {
        "runs": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "callbacks": [{"kind": "interrupt"}],
    }
    whole = run(**changes, name="whole")
    interrupt.at = ("b", 3)
    broken = run(**changes)
    assert (broken.interrupted, broken.exit_code) == (True, 130)
    assert [(run.run_id, run.status) for run in broken.runs] == [("a", "completed"), ("b", "cancelled")]
    assert broken.runs[1].error == "interrupted"
    started = (broken.path / "a" / "starts.jsonl").read_text(encoding="utf-8")
    again = run(**changes, resume=True)
    assert (again.interrupted, again.exit_code, again.path) == (False, 0, broken.path)
    assert [run.metrics for run in again.runs] == [run.metrics for run in whole.runs]
    assert (again.path / "a" / "starts.jsonl").read_text(encoding="utf-8") == started  # a was not run again
    for name in "abc":
        logs = [(found.path / name / "logs" / "metrics.jsonl").read_bytes() for found in (whole, again)]
        assert logs[0] == logs[1]


def test_the_handler_of_ctrl_c_is_given_back(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT)
    run()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait(config: Config) -> None:
    @register_algorithm("stuck")
    class Stuck(SFT):
        async def build_batch(self, step_idx: int) -> Any:
            os.kill(os.getpid(), signal.SIGINT)  # asks ...
            os.kill(os.getpid(), signal.SIGINT)  # ... and does not ask
            return await super().build_batch(step_idx)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Experiment(config({"algorithm": {"kind": "stuck"}})).run()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupted_run_reports_it_in_its_result(run: Run, interrupt: type[Interrupt]) -> None:
    interrupt.at = ("r", 2)
    result = run(callbacks=[{"kind": "interrupt"}])
    written = json.loads((result.path / "r" / "run_result.json").read_text(encoding="utf-8"))
    assert (written["status"], written["error"]) == ("cancelled", "interrupted")
    assert written["artifacts"]["final_checkpoint"].endswith("state")


def test_resume_repeats_failed_and_unscored_arms_and_no_others(run: Run, rows: list[dict[str, Any]]) -> None:
    from evsys_sdk import register_metric

    @register_metric("moody")
    class Moody:
        fails = True

        def compute(self, *, predictions: Any, targets: Any) -> float:
            if Moody.fails:
                raise RuntimeError("not today")
            return 0.5

    data = {"source_kind": "in_memory", "rows": rows}
    changes: dict[str, Any] = {
        "runs": [{"name": "plain"}, {"name": "scored", "eval": {"metrics": [{"kind": "moody"}], "eval_data": data}}]
    }
    first = run(**changes)
    assert first.exit_code == 2
    Moody.fails = False
    second = run(**changes, resume=True)
    assert second.exit_code == 0
    assert second.runs[1].metrics["eval/moody"] == 0.5
    starts = {
        name: len((second.path / name / "starts.jsonl").read_bytes().splitlines()) for name in ("plain", "scored")
    }
    assert starts == {"plain": 1, "scored": 2}
    steps = (second.path / "scored" / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in steps if "loss" in line] == [1, 2, 3, 4, 5, 6]  # trained once


def test_a_damaged_result_is_named_on_resume(run: Run) -> None:
    first = run()
    for damage in ("{half", "[]", '{"status": "completed"}'):
        (first.path / "r" / "run_result.json").write_text(damage, encoding="utf-8")
        with pytest.raises(DataError, match=r"run_result\.json"):
            run(resume=True)


def test_a_resume_that_is_interrupted_at_once_keeps_the_checkpoint(run: Run, interrupt: type[Interrupt]) -> None:
    whole = run(callbacks=[{"kind": "interrupt"}], name="whole")
    interrupt.at = ("r", 3)
    run(callbacks=[{"kind": "interrupt"}])

    class Impatient(Interrupt):
        def on_run_start(self, info: RunInfo, control: RunControl) -> None:
            super().on_run_start(info, control)
            if Impatient.armed:
                Impatient.armed = False
                control.stop("impatient", interrupted=True)

        armed = True

    config = Experiment(ExperimentConfig.model_validate_json(_config_text(whole).replace('"whole"', '"e"'))).config
    experiment = Experiment(config, callbacks=[Impatient])
    [broken] = experiment.run(resume=True).runs
    assert (broken.status, broken.error, broken.metrics["steps"]) == ("cancelled", "impatient", 4)
    [again] = experiment.run(resume=True).runs
    assert again.metrics == whole.runs[0].metrics


def _config_text(result: ExperimentResult) -> str:
    return (result.path / "config.json").read_text(encoding="utf-8")


# Where it runs


async def test_it_runs_inside_a_running_event_loop(config: Config, rows: list[dict[str, Any]]) -> None:
    """As in a notebook, with a scoring that the recipe does not do itself."""

    @register_algorithm("trains_nothing")
    class TrainsNothing:
        def train(self, ctx: Any) -> RunResult:
            return RunResult(ctx.run_id, "completed")

    evaluation = {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": rows}}
    runs = [
        {"name": "a", "eval": evaluation},
        {"name": "b", "algorithm": {"kind": "trains_nothing"}, "eval": evaluation},
    ]
    result = Experiment(config(runs=runs)).run()
    assert [run.status for run in result.runs] == ["completed", "completed"]
    assert all("eval/exact_match" in run.metrics for run in result.runs)


def test_it_runs_on_a_thread(config: Config) -> None:
    results: list[ExperimentResult] = []
    thread = threading.Thread(target=lambda: results.append(Experiment(config()).run()))
    thread.start()
    thread.join()
    assert results[0].exit_code == 0


def test_two_experiments_that_start_at_once_get_a_folder_each(config: Config, tmp_path: Path) -> None:
    shared = config()
    opened: list[Path] = []
    start = threading.Barrier(8)

    def open_one() -> None:
        start.wait()
        opened.append(Experiment(shared).run().path)

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(opened)) == 8
    assert not [path for path in (tmp_path / "outputs").iterdir() if path.name.startswith(".")]


def test_an_output_folder_that_cannot_be_made_is_an_os_error_that_names_it(config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(OSError, match="file"):
        Experiment(config(output_dir=str(tmp_path / "file" / "outputs"))).run()
