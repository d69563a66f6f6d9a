"""How an experiment is getting on, as somebody else reads it from its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import Experiment, ExperimentConfig
from evsys_sdk.cli.main import main
from evsys_sdk.experiment.jobs.live_status import StatusReader, experiment_status
from evsys_sdk.training.callback import Callback

WORDS = ["red", "green", "blue", "white"]
TASKS = [
    {
        "task_id": f"t{number}",
        "instruction": f"Number {number}, colours:\n- red\n- green\n- blue\n- white\nAnswer with one of them.",
        "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": WORDS[number]},
    }
    for number in range(4)
]


@pytest.fixture
def run() -> Callable[..., Path]:
    """Train `rl` and return the experiment's folder; `look` is called after each step."""

    def execute(look: Callable[[Path, int], None] = lambda *_: None, **changes: Any) -> Path:
        class Looks(Callback):
            def on_run_start(self, info: Any, control: Any) -> None:
                self.folder = info.run_dir.parent

            def on_step(self, step: int, metrics: Any) -> None:
                look(self.folder, step)

        params = {"max_steps": 4, "batch_size": 4, "group_size": 4, "sampling": {"max_tokens": 6}, "save_every": 1}
        config = {
            "name": "colours",
            "output_dir": "outputs",
            "launcher": {"kind": "local", "params": {"arms_in": "threads"}},
            "run": {
                "name": "rl",
                "data": {"source_kind": "in_memory", "rows": TASKS},
                "model": {"name": "tiny"},
                "algorithm": {"kind": "rl", "params": params},
                "backend": {"kind": "mock"},
            },
            **changes,
        }
        return Experiment(ExperimentConfig.model_validate(config), callbacks=[Looks]).run(fresh=True).path

    return execute


def test_a_running_arm_shows_its_reward_and_the_time_left(run: Callable[..., Path]) -> None:
    statuses: dict[int, Any] = {}
    run(lambda folder, step: statuses.update({step: experiment_status(folder)}))
    status = statuses[3]
    [arm] = status.arms
    assert (status.state, arm.state, arm.total_steps) == ("running", "running", 4)
    assert arm.measure == "reward/mean"
    assert arm.value is not None
    assert 0 <= arm.value <= 1
    assert arm.seconds_left == pytest.approx((4 - arm.step) * arm.step_s)
    assert status.seconds_left == pytest.approx(arm.seconds_left)


def test_the_best_checkpoint_of_rl_is_the_one_with_the_highest_reward(run: Callable[..., Path]) -> None:
    folder = run()
    lines = [json.loads(line) for line in (folder / "rl/checkpoints.jsonl").read_text("utf-8").splitlines()]
    result = json.loads((folder / "rl/run_result.json").read_text("utf-8"))
    best = max(lines, key=lambda line: line["metrics"]["reward/mean"])
    chosen = next(line for line in lines if line["state"] == result["artifacts"]["best_checkpoint"])
    assert chosen["metrics"]["reward/mean"] == best["metrics"]["reward/mean"]
    assert (result["extras"]["selection_metric"], result["extras"]["selection_mode"]) == ("reward/mean", "max")


def test_status_shows_reward_findings_and_each_reason_once(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    hopeless = [{**task, "verifier": {**task["verifier"], "expected": "no colour"}} for task in TASKS]  # type: ignore[dict-item]
    data = {"source_kind": "in_memory", "rows": hopeless}
    params = {"max_steps": 9, "batch_size": 4, "group_size": 2, "sampling": {"max_tokens": 6}}
    one = {"data": data, "model": {"name": "tiny"}, "backend": {"kind": "mock"}}
    arms = [{"name": name, "algorithm": {"kind": "rl", "params": params}, **one} for name in ("a", "b")]
    run(runs=arms, run=None)
    capsys.readouterr()
    assert main(["status", "colours"]) == 0
    out = capsys.readouterr().out
    assert "failed, 2 of 2 arms done" in out
    assert "reward/mean" in out
    assert out.count("5 batches in a row") == 1
    assert out.count("a, b: the rewards of all rollouts of steps 1 to 3 are 0") == 1


def test_of_several_attempts_the_one_that_is_running_is_shown(
    run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The latest attempt is over while an earlier one continues."""
    shown: list[dict[str, Any]] = []

    def look(folder: Path, step: int) -> None:
        if step == 2:
            later = folder.with_name("colours.2")
            later.mkdir()
            for name in ("config.json", "journal.jsonl"):
                (later / name).write_bytes((folder / name).read_bytes())
            capsys.readouterr()
            assert main(["status", "colours", "--json"]) == 0
            shown.append(json.loads(capsys.readouterr().out))

    folder = run(look)
    assert [(one["state"], Path(one["path"]).name) for one in shown] == [("running", folder.name)]


def test_a_count_without_views_is_the_same(run: Callable[..., Path]) -> None:
    counted: list[tuple[Any, ...]] = []

    def look(folder: Path, step: int) -> None:
        for to_count in (False, True):
            status = StatusReader().read(folder, to_count=to_count)
            counted.append((step, status.state, status.counts, status.done, status.seconds_left is None))

    folder = run(look, n_repeats=2, max_concurrent_arms=1)  # arms side by side would look in turns
    look(folder, 9)

    assert counted[0::2] == counted[1::2]
    assert [one[3] for one in counted[-2:]] == [2, 2]
