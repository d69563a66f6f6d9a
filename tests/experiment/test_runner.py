"""One arm: whatever goes wrong inside it becomes its result, and nothing else suffers."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import RunResult, register_algorithm, register_backend, register_callback, register_log_store
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.backends.client import TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.backends.mock.client import MockTrainingClient
from evsys_sdk.errors import DataError
from evsys_sdk.experiment import ExperimentResult
from evsys_sdk.record.run_files.checkpoints import CheckpointLog
from evsys_sdk.training.callback import Callback, RunControl, RunInfo

type Run = Callable[..., ExperimentResult]
type ResultOf = Callable[..., dict[str, Any]]


class Watcher(Callback):
    """Notes every moment of a run."""

    name = "watcher"

    def __init__(self) -> None:
        self.moments: list[str] = []
        WATCHERS.append(self)

    def on_run_start(self, info: RunInfo, control: RunControl) -> None:
        self.moments.append("start")

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.moments.append(f"step {step}")

    def on_run_end(self, result: RunResult) -> None:
        self.moments.append(f"end: {result.status}")

    def close(self) -> None:
        self.moments.append("close")


WATCHERS: list[Watcher] = []


@pytest.fixture(autouse=True)
def _watcher() -> None:
    WATCHERS.clear()
    register_callback("watcher")(Watcher)


def test_a_run_leaves_its_whole_record_and_the_result_comes_last(
    run: Run, result_of: ResultOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    @register_callback("looks_for_result")
    class LooksForResult(Callback):
        found: bool | None = None

        def on_run_start(self, info: RunInfo, control: RunControl) -> None:
            self.folder = info.run_dir

        def close(self) -> None:
            LooksForResult.found = (self.folder / "run_result.json").exists()

    result = run(callbacks=[{"kind": "looks_for_result"}])
    assert LooksForResult.found is False  # a run that has a result is over for everybody
    written = result_of(result)
    assert set(written) == {"run_id", "status", "metrics", "artifacts", "error", "extras", "hparams", "ts"}
    assert (written["run_id"], written["status"], written["error"]) == ("r", "completed", None)
    assert written["metrics"]["steps"] == 6
    assert written["hparams"]["algorithm"]["params"]["max_steps"] == 6
    assert {path.name for path in (result.path / "r").iterdir()} == {
        ".lock", "config.json", "starts.jsonl", "checkpoints.jsonl", "checkpoints", "datasets.json", "logs",
        "identity.json", "progress.json", "rendered_examples.md", "run_result.json",
    }  # fmt: skip
    for artifact in ("final_checkpoint", "final_sampler", "best_checkpoint", "best_sampler"):
        assert Path(written["artifacts"][artifact]).is_dir()
    hyperparams = json.loads((result.path / "r" / "logs" / "hyperparams.json").read_text(encoding="utf-8"))
    assert (hyperparams["experiment"], hyperparams["run"], hyperparams["model"]) == ("e", "r", "tiny")


def test_the_context_has_what_the_reference_promises(run: Run, rows: list[dict[str, Any]]) -> None:
    fields: dict[str, Any] = {}

    @register_algorithm("looks")
    class Looks:
        def train(self, ctx: Any) -> RunResult:
            fields.update(ctx.extras, output_dir=ctx.output_dir, config=ctx.config.name, backend=ctx.backend.name)
            return RunResult(ctx.run_id, "completed", {"x": 1.0})

    result = run({"algorithm": {"kind": "looks"}, "tags": ["a"]})
    assert result.runs[0].metrics == {"x": 1.0}
    assert (fields["train_rows"], fields["n_train_rows"]) == (rows, len(rows))
    assert (fields["model_name"], fields["tags"], fields["config"], fields["backend"]) == ("tiny", ["a"], "e", "mock")
    assert isinstance(fields["backend_handles"]["training_client"], TrainingClient)
    assert fields["output_dir"] == result.path / "r"


def test_a_data_error_is_one_sentence_and_no_traceback(run: Run, result_of: ResultOf) -> None:
    bad = [{"messages": [{"role": "user", "content": "no answer"}]}]
    result = run({"data": {"source_kind": "in_memory", "rows": bad}}, callbacks=[{"kind": "watcher"}], checked=True)
    written = result_of(result)
    assert written["status"] == "failed"
    assert written["error"].startswith("DataError: row 1: no assistant turn")
    assert set(written["extras"]) == {"spend"}
    assert result.exit_code == 2
    assert WATCHERS[0].moments == ["start", "end: failed", "close"]


def test_a_bug_in_a_recipe_keeps_its_traceback(run: Run) -> None:
    @register_algorithm("buggy")
    class Buggy(SFT):
        async def build_batch(self, step_idx: int) -> Any:
            raise ZeroDivisionError("one over nothing")

    [failed] = run({"algorithm": {"kind": "buggy"}}).runs
    assert re.fullmatch(r"ZeroDivisionError: one over nothing \(at .*test_runner\.py:\d+\)", str(failed.error))
    assert "in build_batch" in failed.notes.traceback


@pytest.mark.parametrize("returned", [None, {"status": "completed"}])
def test_a_train_that_returns_no_result_is_reported(returned: Any, run: Run) -> None:
    @register_algorithm("forgetful")
    class Forgetful:
        def train(self, ctx: Any) -> Any:
            return returned

    [failed] = run({"algorithm": {"kind": "forgetful"}}).runs
    assert failed.status == "failed"
    assert "Return a RunResult" in str(failed.error)


def test_numbers_of_any_kind_are_recorded_as_json(run: Run, result_of: ResultOf) -> None:
    import numpy as np

    @register_algorithm("numeric")
    class Numeric:
        def train(self, ctx: Any) -> RunResult:
            metrics: Any = {"a": np.float32(0.5), "b": math.nan, "c": np.int64(3), "d": math.inf, "e": "x"}
            extras = {"array": np.arange(2), "path": ctx.output_dir, 1: {2}}
            return RunResult(ctx.run_id, "completed", metrics, extras=extras)

    result = run({"algorithm": {"kind": "numeric"}})
    assert result.exit_code == 0
    written = result_of(result)
    assert written["metrics"] == {"a": 0.5, "c": 3}  # the others are reported and left out
    assert "contradiction" not in (result.path / "conclusion.md").read_text("utf-8")
    assert written["extras"].pop("spend")["tokens_trained"] == 0
    assert written["extras"] == {"array": [0, 1], "path": str(result.path / "r"), "1": [2]}
    assert json.dumps(result.to_dict(), allow_nan=False)


def test_a_backend_that_cannot_prepare_fails_its_arm_and_the_other_continues(run: Run) -> None:
    @register_backend("broken")
    class Broken:
        name = "broken"
        torn_down = False

        def prepare(self, **_: Any) -> dict[str, Any]:
            raise ConnectionError("no such host")

        def teardown(self, handles: dict[str, Any]) -> None:
            Broken.torn_down = True

    result = run(runs=[{"name": "a", "backend": {"kind": "broken"}}, {"name": "b"}])
    assert [(run.run_id, run.status) for run in result.runs] == [("a", "failed"), ("b", "completed")]
    assert result.runs[0].error == "ConnectionError: no such host"
    assert result.exit_code == 2
    assert not Broken.torn_down  # there is nothing to tear down


@pytest.mark.parametrize("handles", [None, "ready"])
def test_a_backend_that_prepares_no_handles_is_reported(handles: Any, run: Run) -> None:
    @register_backend("odd")
    class Odd:
        name = "odd"

        def prepare(self, **_: Any) -> Any:
            return handles

        def teardown(self, handles: dict[str, Any]) -> None: ...

    [failed] = run({"backend": {"kind": "odd"}}).runs
    assert "Return a dict of handles" in str(failed.error)


def test_a_backend_without_a_training_client_is_refused_by_recipes_that_need_one(run: Run) -> None:
    @register_backend("bare")
    class Bare:
        name = "bare"

        def prepare(self, **_: Any) -> dict[str, Any]:
            return {}

        def teardown(self, handles: dict[str, Any]) -> None: ...

    [failed] = run({"backend": {"kind": "bare"}}).runs
    assert str(failed.error).startswith("BackendError: the backend 'bare' has no training_client")


@pytest.mark.parametrize("train_fails", [False, True])
def test_a_teardown_that_raises_changes_nothing_about_how_the_run_went(
    train_fails: bool, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    @register_backend("clumsy")
    class Clumsy(MockBackend):
        def teardown(self, handles: dict[str, Any]) -> None:
            super().teardown(handles)
            raise RuntimeError("could not let go")

    params = {"max_length": 2} if train_fails else {}
    with caplog.at_level(logging.ERROR, logger="evsys_sdk"):
        [run_result] = run({"backend": {"kind": "clumsy"}}, params=params, checked=True).runs
    assert run_result.status == ("failed" if train_fails else "completed")
    assert str(run_result.error or "").startswith("DataError: row 1" if train_fails else "")
    assert "could not let go" in caplog.text


def full_disk(monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Let the mock backend run out of disk while it writes a later checkpoint."""
    from evsys_sdk.backends.mock import client as module

    write, calls = module.write_checkpoint, []

    def write_or_fail(folder: Path, *rest: Any) -> None:
        calls.append(folder)
        if len(calls) > after:
            folder.mkdir(parents=True)
            (folder / "weights.npz").write_bytes(b"half of it")
            raise OSError(28, "No space left on device", str(folder / "weights.npz"))
        write(folder, *rest)

    monkeypatch.setattr(module, "write_checkpoint", write_or_fail)


def test_a_full_disk_fails_the_run_with_a_clear_error_and_leaves_earlier_checkpoints_usable(
    run: Run, result_of: ResultOf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        full_disk(patch, after=2)
        result = run(params={"save_every": 2})
    written = result_of(result)
    assert written["status"] == "failed"
    assert "the checkpoint 'step000004' could not be stored" in written["error"]
    assert "No space left on device" in written["error"]
    assert "continue with --resume" in written["error"]
    assert "traceback" not in written["extras"]
    [intact] = CheckpointLog.in_dir(result.path / "r").read()
    assert intact.next_step == 2
    resumed = run(params={"save_every": 2}, resume=True)
    assert resumed.runs[0].status == "completed"
    undisturbed = run(params={"save_every": 2}, name="other")
    assert resumed.runs[0].metrics == undisturbed.runs[0].metrics


def test_a_disk_that_takes_no_result_fails_the_arm_and_the_others_continue(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.experiment import observation

    write = observation.write_result

    def only_b(run_dir: Path, *rest: Any, **more: Any) -> None:
        if run_dir.name == "a":
            raise OSError(28, "No space left on device")
        write(run_dir, *rest, **more)

    monkeypatch.setattr(observation, "write_result", only_b)
    result = run(runs=[{"name": "a"}, {"name": "b"}])
    assert [run.status for run in result.runs] == ["failed", "completed"]
    assert "No space left" in str(result.runs[0].error)


def test_a_run_folder_that_cannot_be_made_fails_its_arm_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from evsys_sdk.experiment import observation

    begin = observation.begin_run

    def not_for_a(run_dir: Path, config: dict[str, Any]) -> int:
        if run_dir.name == "a":
            raise PermissionError(13, "Permission denied", str(run_dir))
        return begin(run_dir, config)

    monkeypatch.setattr(observation, "begin_run", not_for_a)
    result = run(runs=[{"name": "a"}, {"name": "b"}])
    assert [run.status for run in result.runs] == ["failed", "completed"]
    assert "Permission denied" in str(result.runs[0].error)


# Observers


@pytest.mark.parametrize("moment", ["on_data", "on_step", "on_checkpoint", "on_run_end", "close", "state"])
def test_an_observer_cannot_kill_a_run(moment: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise RuntimeError("no")

    register_callback("hostile")(type("Hostile", (Callback,), {"name": "hostile", moment: fail}))
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        [run_result] = run(callbacks=[{"kind": "hostile"}, {"kind": "watcher"}]).runs
    assert run_result.status == "completed"
    assert "callback 'hostile' failed" in caplog.text
    assert WATCHERS[0].moments == ["start", *[f"step {step}" for step in range(1, 7)], "end: completed", "close"]


@pytest.mark.parametrize("moment", ["on_data", "on_step", "on_checkpoint", "on_run_end", "close", "state"])
def test_an_observer_that_exits_fails_its_run(moment: str, run: Run) -> None:
    def leave(self: Any, *args: Any) -> Any:
        raise SystemExit(0)

    register_callback("hostile")(type("Hostile", (Callback,), {"name": "hostile", moment: leave}))
    result = run(callbacks=[{"kind": "hostile"}, {"kind": "watcher"}])
    assert result.exit_code == 2
    assert "callback 'hostile' called sys.exit(0)" in str(result.runs[0].error)
    assert WATCHERS[0].moments[-2:] == [
        "end: completed" if moment in ("on_run_end", "close") else "end: failed",
        "close",
    ]


def test_an_observer_cannot_change_what_the_run_and_the_others_see(run: Run, result_of: ResultOf) -> None:
    @register_callback("meddler")
    class Meddler(Callback):
        def on_step(self, step: int, metrics: Any) -> None:
            metrics["loss"] = math.nan

        def on_checkpoint(self, checkpoint: Any) -> None:
            checkpoint["metrics"].clear()

        def on_run_end(self, result: RunResult) -> None:
            result.metrics.clear()

    result = run(callbacks=[{"kind": "meddler"}, {"kind": "local_logger"}])
    assert result.exit_code == 0
    assert result_of(result)["metrics"]["final_loss"] > 0
    text = (result.path / "r" / "logs" / "training" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "nan" not in text.lower()


def test_a_state_that_is_no_json_costs_the_observer_and_not_the_checkpoint(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    @register_callback("complex_state")
    class ComplexState(Callback):
        name = "complex_state"

        def state(self) -> dict[str, Any]:
            return {"path": Path()}

    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        [run_result] = run(callbacks=[{"kind": "complex_state"}]).runs
    assert run_result.status == "completed"
    assert "callback 'complex_state' failed: TypeError" in caplog.text


@pytest.mark.parametrize("how", ["construct", "start", "start_sdk"])
def test_an_observer_that_cannot_start_stops_the_run_before_it_trains(
    how: str, run: Run, result_of: ResultOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    @register_callback("unstartable")
    class Unstartable(Callback):
        name = "unstartable"

        def __init__(self) -> None:
            if how == "construct":
                raise DataError("there is no key. Set SOME_KEY.")

        def on_run_start(self, info: RunInfo, control: RunControl) -> None:
            raise DataError("there is no key. Set SOME_KEY.") if how == "start_sdk" else KeyError("SOME_KEY")

    trained: list[int] = []
    forward_backward = MockTrainingClient.forward_backward
    monkeypatch.setattr(
        MockTrainingClient, "forward_backward", lambda *a, **k: (trained.append(1), forward_backward(*a, **k))[1]
    )
    result = run(callbacks=[{"kind": "watcher"}, {"kind": "unstartable"}, {"kind": "watcher"}])
    assert result_of(result)["status"] == "failed"
    assert "SOME_KEY" in result_of(result)["error"]
    assert trained == []
    if how != "construct":
        assert "callback 'unstartable' cannot start" in result_of(result)["error"]
        assert "traceback" not in result_of(result)["extras"]
        assert [watcher.moments for watcher in WATCHERS] == [["start", "end: failed", "close"], ["close"]]


def test_a_log_store_that_fails_while_training_does_not_kill_the_run(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    @register_log_store("flaky")
    class Flaky:
        name = "flaky"

        def log_hyperparams(self, params: Any) -> None: ...

        def close(self) -> None: ...

        def log_scalar(self, key: str, value: float, step: int) -> None: ...

        def log_metrics(self, metrics: Any, step: int) -> None:
            raise OSError(28, "No space left on device")

        def log_artifact(self, name: str, path: str) -> None:
            raise OSError(28, "No space left on device")

    @register_algorithm("own")
    class Own:
        def train(self, ctx: Any) -> RunResult:
            ctx.log_store.log_scalar("loss", 1.0, 1)
            ctx.log_store.log_artifact("model", "here")
            return RunResult(ctx.run_id, "completed")

    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        result = run(log_store={"kind": "flaky"}, runs=[{"name": "a"}, {"name": "b", "algorithm": {"kind": "own"}}])
    assert [run.status for run in result.runs] == ["completed", "completed"]
    assert "No space left" in caplog.text


# Watchdogs


def with_loss(name: str, losses: list[float]) -> None:
    """Register an algorithm whose loss is what the list says, step by step."""

    @register_algorithm(name)
    class Scripted(SFT):
        def step_metrics(self, step_idx: int, batch: Any, output: Any) -> Mapping[str, float]:
            return {"loss": losses[step_idx]}


@pytest.mark.parametrize(
    ("losses", "message", "steps"),
    [
        ([1.0, math.nan, 1.0, 1.0], "loss became nan at step 2.*Lower learning_rate", 2),
        ([1.0, 1.0, math.inf, 1.0], "loss became inf at step 3", 3),
        ([1.0, 50.0, 60.0, 70.0, 1.0, 1.0], "the loss exploded: 70 at step 4 after a best of 1", 4),
    ],
    ids=["nan", "inf", "exploding"],
)
def test_a_run_that_has_gone_wrong_is_stopped_with_a_diagnosis_in_its_result(
    losses: list[float], message: str, steps: int, run: Run, result_of: ResultOf
) -> None:
    import re

    with_loss("scripted", losses)
    params = {"max_steps": len(losses), "save_every": 1}
    result = run({"algorithm": {"kind": "scripted", "params": params}}, callbacks=[{"kind": "watcher"}])
    written = result_of(result)
    assert written["status"] == "failed"
    assert written["error"].startswith("TrainingError: ")
    assert re.search(message, written["error"])
    assert "traceback" not in written["extras"]
    assert WATCHERS[0].moments[-3:] == [f"step {steps}", "end: failed", "close"]
    # What was saved before it went wrong is still there to start again from.
    healthy = CheckpointLog.in_dir(result.path / "r").read()
    assert [found.next_step for found in healthy] == list(range(1, steps))


def test_empty_batches_stop_the_run_in_the_order_they_came(run: Run, result_of: ResultOf) -> None:
    @register_algorithm("dries_up")
    class DriesUp(SFT):
        async def build_batch(self, step_idx: int) -> Any:
            batch = await super().build_batch(step_idx)
            batch.data = batch.data if step_idx < 2 else []
            return batch

    algorithm = {"kind": "dries_up", "params": {"max_steps": 20}}
    result = run({"algorithm": algorithm}, callbacks=[{"kind": "watcher"}])
    assert "5 batches in a row up to step 7 had nothing to learn from" in result_of(result)["error"]
    assert WATCHERS[0].moments == ["start", *[f"step {step}" for step in range(1, 8)], "end: failed", "close"]


def test_a_metric_that_is_no_number_is_named_before_a_checkpoint_is_lost_to_it(run: Run) -> None:
    @register_algorithm("wordy")
    class Wordy(SFT):
        def step_metrics(self, step_idx: int, batch: Any, output: Any) -> Any:
            return {"mood": "good"}

    [failed] = run({"algorithm": {"kind": "wordy"}}).runs
    assert failed.error == "TrainingError: the metric 'mood' is not a number (got 'good'). Log numbers only."


# Checkpoints


def test_the_best_checkpoint_is_that_of_the_selection_metric(run: Run) -> None:
    with_loss("scripted", [0.5, 0.3, 0.9, 0.2, 0.8, 0.7])
    params = {"max_steps": 6, "save_every": 1, "selection_metric": "loss"}
    artifacts = [
        run({"algorithm": {"kind": "scripted", "params": {**params, **more}}}).runs[0].artifacts
        for more in ({}, {"selection_mode": "max"})
    ]
    assert [Path(artifact["best_checkpoint"]).parent.name for artifact in artifacts] == ["step000004", "step000003"]
    assert Path(artifacts[0]["final_checkpoint"]).parent.name == "step000006-final"
    assert all((Path(artifact["best_checkpoint"]) / "manifest.json").exists() for artifact in artifacts)


def test_a_selection_metric_that_nothing_has_is_reported_with_a_guess(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        [run_result] = run(params={"selection_metric": "grad_nrom"}).runs
    assert run_result.status == "completed"
    assert "best_checkpoint" not in run_result.artifacts
    assert "no checkpoint has the metric 'grad_nrom' to select by; did you mean 'grad_norm'?" in caplog.text


def test_init_takes_the_weights_and_load_takes_the_optimizer_too(run: Run, tmp_path: Path) -> None:
    constant = {"lr_schedule": "constant", "batch_size": 6}  # every batch holds all rows, so that order plays no part
    whole = run(params={**constant, "max_steps": 8}, name="whole")
    half = run(params={**constant, "max_steps": 4}, name="half")
    checkpoint = half.runs[0].artifacts["final_checkpoint"]

    def losses(result: ExperimentResult) -> list[float]:
        lines = (result.path / "r" / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["loss"] for line in lines]

    def from_checkpoint(key: str, reference: str) -> list[float]:
        model = {"name": "tiny", key: reference}
        return losses(run({"model": model}, params={**constant, "max_steps": 4}, name=key))

    loaded = from_checkpoint("load_checkpoint_path", checkpoint)
    fresh = from_checkpoint("init_from_checkpoint", checkpoint)
    assert loaded == pytest.approx(losses(whole)[4:], rel=1e-5)
    assert fresh[0] == pytest.approx(loaded[0], rel=1e-6)  # the same weights ...
    assert fresh[2] != pytest.approx(loaded[2], rel=1e-4)  # ... which a fresh optimizer moves differently


def test_the_folder_of_a_run_stands_for_its_last_checkpoint(run: Run) -> None:
    first = run(name="first")
    model = {"name": "tiny", "init_from_checkpoint": str(first.path / "r")}
    [second] = run({"model": model}, name="second").runs
    explicit = {"name": "tiny", "init_from_checkpoint": first.runs[0].artifacts["final_checkpoint"]}
    [third] = run({"model": explicit}, name="third").runs
    assert second.metrics == third.metrics
    assert second.metrics["final_loss"] < first.runs[0].metrics["final_loss"]


@pytest.mark.parametrize("key", ["load_checkpoint_path", "init_from_checkpoint"])
def test_a_checkpoint_that_is_not_there_fails_before_training(key: str, run: Run, tmp_path: Path) -> None:
    [failed] = run({"model": {"name": "tiny", key: str(tmp_path / "nothing")}}, checked=True).runs
    assert failed.status == "failed"
    assert "nothing" in str(failed.error)
    assert failed.notes.traceback is None


def test_a_run_that_fails_again_and_again_can_still_be_resumed(run: Run, result_of: ResultOf) -> None:
    """The stale result of a failed attempt does not outlive the attempt that follows it."""

    @register_algorithm("mends")
    class Mends(SFT):
        attempts = 0

        async def setup(self) -> None:
            await super().setup()
            Mends.attempts += 1

        async def build_batch(self, step_idx: int) -> Any:
            if step_idx == 2 * Mends.attempts and Mends.attempts < 3:
                raise RuntimeError(f"attempt {Mends.attempts}")
            return await super().build_batch(step_idx)

    algorithm = {"kind": "mends", "params": {"max_steps": 6, "batch_size": 3, "save_every": 1}}
    outcomes = [run({"algorithm": algorithm}, resume=bool(turn)).runs[0] for turn in range(3)]
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "completed"]
    assert str(outcomes[1].error).startswith("RuntimeError: attempt 2 (at ")
    plain = run(name="plain").runs[0]
    assert outcomes[2].metrics == plain.metrics
