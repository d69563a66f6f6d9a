"""Loops of one's own are recorded as experiments: arms, seeds, metrics, scores, resume, budget, conclusion."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

import evsys_sdk
from evsys_sdk import History, LoopRun, Model
from evsys_sdk.cli.main import main
from evsys_sdk.dashboard.local.records import LocalRecords
from evsys_sdk.dashboard.views.source import ExperimentQuery
from evsys_sdk.errors import ConfigError, DataError, TrainingError

ROOT = Path(__file__).parents[2]
LOOPS = ("expert_iteration", "distil_bias", "grpo")
OK = {"kind": "in_process", "fn_name": "exact_match", "expected": "ok"}
TASKS = [{"task_id": f"t{number}", "instruction": f"Say {number}", "verifier": OK} for number in range(4)]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A small experiment on mock with a test set of four tasks."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("\n".join(map(json.dumps, TASKS)))
    benchmark = {"name": "ok", "path": str(tasks), "max_tokens": 4}
    return {"model": "tiny", "backend": "mock", "benchmark": benchmark, "output_dir": str(tmp_path / "out")}


def learn(run: LoopRun, total: int = 6) -> list[int]:
    """The loop of these tests: learns to say ok."""
    steps: list[int] = []
    for step in run.steps(total, save_every=2):
        [answers] = run.model.sample(["Say 0"], n=2, max_tokens=2)
        run.log_rollouts([answers], [[1.0, 0.0]], ["t0"])
        run.state["seen"] = [*run.state.get("seen", []), step]
        run.log(run.model.train([("Say", "ok")], learning_rate=run.args.get("lr", 0.02)), extra=1.5)
        steps.append(step)
    return steps


def test_arms_and_seeds_are_trained_scored_and_concluded(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = {"claim": "faster is better", "metric": "pass@1", "baseline": "slow"}
    arms = {"slow": {"lr": 0.0001}, "fast": {"lr": 0.05}}
    with evsys_sdk.record("arms", hypothesis=claim, arms=arms, seeds=3, **options) as experiment:
        names = [(run.name, run.seed, len(learn(run))) for run in experiment.runs()]
    assert names == [(f"{arm}__seed{seed}", seed, 6) for arm in arms for seed in range(3)]
    result = experiment.result
    assert result is not None
    assert result.status == "completed"
    assert [arm.metrics["test/ok/pass@1"] for arm in result.arms] == [0.0] * 3 + [1.0] * 3
    assert result.conclusion is not None
    assert (result.conclusion["verdict"], result.conclusion["best_arm"]) == ("supported", "fast")
    metrics = [
        json.loads(line) for line in (result.path / "fast__seed1" / "logs" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [metric["step"] for metric in metrics if "extra" in metric] == [1, 2, 3, 4, 5, 6]
    [found] = [view for view in History([tmp_path / "out"]).select() if view.name == "arms"]
    assert found.verdict == "supported"
    capsys.readouterr()
    assert main(["context"]) == 0
    assert "faster is better" in capsys.readouterr().out
    assert main(["audit", str(result.path)]) == 0
    assert main(["rollouts", str(result.path), "--json"]) == 0
    [shown] = LocalRecords([tmp_path / "out"], tmp_path).list_experiments(ExperimentQuery()).items
    assert (shown.name, shown.verdict) == ("arms", "supported")


def test_a_loop_that_fails_resumes_behind_its_last_checkpoint(options: dict[str, Any]) -> None:
    class Stop(Exception): ...

    def interrupted() -> None:
        with evsys_sdk.record("again", **options) as experiment:
            for run in experiment.runs():
                for step in run.steps(6, save_every=2):
                    run.state["seen"] = [*run.state.get("seen", []), step]
                    run.log(run.model.train([("Say", "ok")], learning_rate=0.02).metrics)
                    if step == 3:
                        raise Stop("no more")

    with pytest.raises(Stop):
        interrupted()
    with evsys_sdk.record("again", **options) as experiment:
        [(steps, state)] = [(learn(run), run.state["seen"]) for run in experiment.runs()]
    assert steps == [2, 3, 4, 5]
    assert state == [0, 1, 2, 3, 4, 5]
    assert experiment.result is not None
    assert experiment.result.status == "completed"
    assert experiment.result.path.name == "again"
    with evsys_sdk.record("again", **options) as experiment:  # a finished one is begun anew
        assert [learn(run) for run in experiment.runs()] == [[0, 1, 2, 3, 4, 5]]
    assert experiment.result is not None
    assert experiment.result.path.name != "again"


def test_further_adapters_are_metered_saved_and_resumed(options: dict[str, Any]) -> None:
    def loop(run: LoopRun, stop_at: int | None) -> float:
        for step in run.steps(4, save_every=1):
            other: Model = run.model.adapter("other", seed=5)
            run.log(run.model.train([("a", "b")]).metrics)
            other.train([("a", "c")], learning_rate=0.05)
            if step == stop_at:
                raise KeyError("stop")
        return float(run.model.adapter("other").logprobs([("a", "c")])[0][0])

    def trained(name: str, stop_at: int | None) -> list[float]:
        with evsys_sdk.record(name, **options) as experiment:
            return [loop(run, stop_at) for run in experiment.runs()]

    with pytest.raises(KeyError):
        trained("two", 2)
    assert trained("two", None) == pytest.approx(trained("one", None), abs=1e-6)


def test_time_is_kept_for_scoring_and_a_loop_may_end_early(options: dict[str, Any]) -> None:
    with evsys_sdk.record("late", budget={"wall_s": 30}, **options) as experiment:
        for run in experiment.runs():
            assert run.seconds_left is not None
            assert 0 < run.seconds_left < 30
            for step in run.steps(1000, reserve_s=run.seconds_left - 0.5):
                run.log(run.model.train([("Say", "ok")], learning_rate=0.02).metrics)
                if step == 5:
                    time.sleep(0.6)
    assert experiment.result is not None
    [arm] = experiment.result.arms
    assert (arm.status, arm.result.notes.unscored) == ("completed", None)
    assert "test/ok/pass@1" in arm.metrics
    assert "of the time budget are left" in str(arm.result.notes.stop_reason)
    with evsys_sdk.record("early", **options) as experiment:
        for run in experiment.runs():
            for _ in run.steps(100):
                run.log(run.model.train([("Say", "ok")]).metrics)
                break
    assert experiment.result is not None
    assert experiment.result.arms[0].metrics["steps"] == 1.0


def test_benchmarks_are_scored_inside_the_loop(options: dict[str, Any], tmp_path: Path) -> None:
    entry = options.pop("benchmark")
    others = [{**task, "task_id": f"v{n}", "instruction": f"Say it {n} times"} for n, task in enumerate(TASKS)]
    (tmp_path / "val.jsonl").write_text("\n".join(map(json.dumps, others)))
    val = {**entry, "name": "val", "path": str(tmp_path / "val.jsonl"), "split": "val", "run_every": 2}
    with evsys_sdk.record("val", benchmark=[{**entry, "split": "test"}, val], **options) as experiment:
        for run in experiment.runs():
            for step in run.steps(4):
                run.log(run.model.train([("Say", "ok")], learning_rate=0.1).metrics)
                if step == 2:
                    assert set(run.score()) >= {"val/val/pass@1", "val/val/tasks"}
    assert experiment.result is not None
    lines = (experiment.result.path / "val" / "logs" / "metrics.jsonl").read_text().splitlines()
    assert {2, 4} <= {json.loads(line)["step"] for line in lines if "val/val/pass@1" in line}


def test_mistakes_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="n_repeats"):
        evsys_sdk.record("bad", seeds=0, **options)
    unknown: dict[str, Any] = {**options, "backend": "no_such"}
    with pytest.raises(ConfigError, match="no_such"), evsys_sdk.record("bad", **unknown):
        pass
    with pytest.raises(TrainingError, match=r"outside of run\.steps"), evsys_sdk.record("bad", **options) as experiment:
        next(experiment.runs()).log(loss=1.0)
    with evsys_sdk.record("none", **options) as experiment:
        for _ in experiment.runs():
            pass
    assert experiment.result is not None
    assert "the loop took no step" in str(experiment.result.arms[0].result.error)


def test_what_cannot_be_recorded_is_refused_where_it_is_given(options: dict[str, Any]) -> None:
    def loop(**more: Any) -> None:
        with evsys_sdk.record("bad", **options, **more) as experiment:
            for run in experiment.runs():
                for step in run.steps(2, save_every=1):
                    [answers] = run.model.sample(["Say 0"], n=2, max_tokens=2)
                    for rewards in ([[1.0]], [[1.0, float("nan")]], [[1.0, None]], [1.0, 0.0]):
                        with pytest.raises(DataError, match="reward"):
                            run.log_rollouts([answers], cast("Any", rewards))
                    with pytest.raises(DataError, match="2 tasks"):
                        run.log_rollouts([answers], [[1.0, 0.0]], ["t0", "t1"])
                    with pytest.raises(DataError, match="metric 'mood' is not a number"):
                        run.log({"mood": "good"})
                    run.state["seen"] = {step}

    with pytest.raises(ConfigError, match=r"algorithm\.params\.args"):
        loop(arms={"one": 3})
    with pytest.raises(DataError, match=r"run\.state: cannot be written as JSON"):
        loop()


def test_a_step_that_the_loop_leaves_is_counted_whole(options: dict[str, Any]) -> None:
    counted: list[int] = []
    with evsys_sdk.record("left", **options) as experiment:
        for run in experiment.runs():
            for _ in run.steps(3):
                run.log(run.model.train([("Say", "ok")]).metrics)
                break
            counted.append(run.model.tokens_trained)
    assert experiment.result is not None
    assert [arm.metrics["tokens"] for arm in experiment.result.arms] == counted
    assert counted[0] > 0


def test_the_package_of_the_same_name_can_be_called(options: dict[str, Any]) -> None:
    assert importlib.import_module("evsys_sdk.record.events")
    assert callable(evsys_sdk.record)
    assert evsys_sdk.record("called", **options).config.name == "called"


def test_a_script_is_a_recipe_with_arms_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(
        "import evsys_sdk\n"
        "with evsys_sdk.record('ignored', model='other') as experiment:\n"
        "    for run in experiment.runs():\n"
        "        for step in run.steps(3):\n"
        "            run.log(run.model.train([('a', 'b')], learning_rate=run.args['lr']).metrics)\n"
    )
    config = {
        "name": "script",
        "n_repeats": 2,
        "matrix": {
            "base_run": {
                "model": {"name": "tiny"},
                "backend": {"kind": "mock"},
                "algorithm": {"kind": "script", "params": {"file": "loop.py", "args": {"lr": 0.1}}},
            },
            "axes": {"algorithm.params.args.lr": [0.01, 0.1]},
            "name_template": "lr{algorithm.params.args.lr}",
        },
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    assert main(["validate", "config.yaml", "--deep"]) == 0
    assert main(["run", "config.yaml", "--quiet"]) == 0
    record = tmp_path / "outputs" / "script"
    losses = [
        json.loads((record / f"{run}__seed42" / "run_result.json").read_text())["metrics"]
        for run in ("lr0p01", "lr0p1")
    ]
    assert losses[0]["final_loss"] > losses[1]["final_loss"]
    assert losses[0]["steps"] == 3
    identity = json.loads((record / "lr0p1__seed43" / "identity.json").read_text())
    assert "script 'loop.py'" in identity["own_code"]
    (tmp_path / "loop.py").write_text("import evsys_sdk\nthis is no Python")
    assert main(["validate", "config.yaml", "--deep"]) == 1


def test_the_page_shows_the_loop_as_it_is() -> None:
    code = (ROOT / "examples/23_own_loop/grpo.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (ROOT / "docs/own-loop.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_the_loops_of_the_page_are_killed_and_resume_as_if_they_had_not_been(
    loop: str, tmp_path: Path, examples: Path
) -> None:
    """See docs/own-loop.md; the same on SmolLM2 is in tests/backends/local."""
    run_killed_and_whole(loop, tmp_path, examples, ["tiny", "mock"])


def run_killed_and_whole(loop: str, tmp_path: Path, examples: Path, arguments: list[str]) -> dict[str, Any]:
    """Run a loop of the page twice, one of them killed behind its first checkpoint; both end with the same record."""
    script = str(examples / "23_own_loop" / f"{loop}.py")
    outcomes: list[Any] = []
    for place in ("whole", "killed"):
        folder = tmp_path / place
        (folder / ".evsys").mkdir(parents=True)
        if place == "killed":
            kill_behind_first_checkpoint([sys.executable, script, *arguments], folder)
        subprocess.run([sys.executable, script, *arguments], cwd=folder, check=True, timeout=900)
        [record] = list((folder / "outputs").glob("*/journal.jsonl"))
        outcomes.append(read_outcome(record.parent))
        assert main(["audit", str(record.parent)]) == 0
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


def kill_behind_first_checkpoint(command: list[str], folder: Path) -> None:
    process = subprocess.Popen(command, cwd=folder)
    while not list((folder / "outputs").glob("*/*/checkpoints.jsonl")):
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not list((folder / "outputs").glob("*/conclusion.json"))


def read_outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on a kill: metrics of every step, and the verdict."""
    [run] = [path.parent for path in folder.glob("*/run_result.json")]
    steps = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in step.items() if not k.startswith("time/") and k != "ts"} for step in steps]
    conclusion = json.loads((folder / "conclusion.json").read_text())
    return {
        "steps": sorted(metrics, key=json.dumps),
        "verdict": conclusion["verdict"],
        "score": conclusion["best_score"],
    }
