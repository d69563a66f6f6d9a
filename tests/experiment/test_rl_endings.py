"""How reinforcement learning ends when its rewards stop to differ: converged, collapsed, or never any reward."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from evsys_sdk import register_verifier
from evsys_sdk.experiment import ExperimentResult
from evsys_sdk.experiment.preflight.meaning import tasks
from evsys_sdk.record.run_files.checkpoints import CheckpointLog

TASKS = [
    {"task_id": f"t{at}", "instruction": f"Say {at}.", "verifier": {"kind": "in_process", "fn_name": "scripted"}}
    for at in range(2)
]
PARAMS = {"batch_size": 2, "group_size": 4, "max_steps": 30, "sampling": {"max_tokens": 4}}
VARIED = 8
"""Rollouts of the first step, whose rewards differ."""


@pytest.fixture
def reward(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what every answer earns once the first step, where asked for, has had different rewards."""
    monkeypatch.setattr(tasks, "_try_verifiers", lambda *_: iter(()))  # rewards depend on the number of calls

    def script(then: float, *, varied: bool = True) -> None:
        calls = 0

        @register_verifier("scripted")
        def scripted(completion: str, expected: Any, **_: Any) -> float:  # pyright: ignore[reportUnusedFunction]
            nonlocal calls
            calls += 1
            return float(calls % 2) if varied and calls <= VARIED else then

    return script


def train(run: Callable[..., ExperimentResult], tmp_path: Any, **sampling: Any) -> ExperimentResult:
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS), "utf-8")
    algorithm = {"kind": "rl", "params": PARAMS | {"sampling": {"max_tokens": 4, **sampling}}}
    benchmark = {"path": str(tmp_path / "tasks.jsonl"), "name": "t", "metrics": ["mean_reward"]}
    return run(
        {"data": {"source_kind": "in_memory", "rows": TASKS}, "algorithm": algorithm}, metadata={"benchmark": benchmark}
    )


def test_a_converged_run_is_saved_scored_and_done(run: Any, reward: Any, tmp_path: Any) -> None:
    reward(1.0)
    result = train(run, tmp_path)
    [arm] = result.arms
    assert (result.exit_code, arm.status) == (0, "completed")
    assert "nothing left to learn" in (arm.result.notes.stop_reason or "")
    assert arm.metrics["steps"] == 4
    assert arm.metrics["test/t/mean_reward"] == 1.0
    assert arm.result.notes.findings is None
    assert CheckpointLog.in_dir(result.path / "r").read()[-1].final


def test_a_collapsed_run_is_saved_and_scored_with_the_finding(run: Any, reward: Any, tmp_path: Any) -> None:
    reward(0.4)
    result = train(run, tmp_path, temperature=0.01)
    [arm] = result.arms
    assert (result.exit_code, arm.status) == (0, "completed")
    assert arm.metrics["test/t/mean_reward"] == 0.4
    [finding] = arm.result.notes.findings or []
    assert "collapsed to one answer" in finding
    assert all(word in finding for word in ("entropy", "learning_rate", "kl_coefficient", "temperature"))
    assert "easier" not in finding
    assert arm.result.notes.stop_reason == finding
    assert CheckpointLog.in_dir(result.path / "r").read()[-1].final


def test_a_run_that_never_had_a_reward_fails_with_the_cause_and_keeps_its_weights(
    run: Any, reward: Any, tmp_path: Any
) -> None:
    reward(0.0, varied=False)
    result = train(run, tmp_path)
    [arm] = result.arms
    assert (result.exit_code, arm.status) == (2, "failed")
    assert "the rewards of all rollouts of steps 1 to 5 are 0" in (arm.result.error or "")
    [checkpoint] = CheckpointLog.in_dir(result.path / "r").read()
    assert (checkpoint.next_step, checkpoint.final) == (5, False)


def test_a_converged_phase_of_combo_does_not_end_the_phases_after_it(run: Any, reward: Any) -> None:
    reward(1.0)
    chats = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 4
    phases = [
        {"kind": "rl", "params": PARAMS},
        {"kind": "sft", "params": {"max_steps": 3}, "data": {"source_kind": "in_memory", "rows": chats}},
    ]
    data = {"source_kind": "in_memory", "rows": TASKS}
    result = run({"data": data, "algorithm": {"kind": "combo", "params": {"phases": phases}}})
    [arm] = result.arms
    assert (arm.status, arm.metrics["steps"]) == ("completed", 4 + 3)
    assert (arm.result.notes.stop_reason, arm.result.notes.untrained_stages) == (None, None)
    ends = [one for one in CheckpointLog.in_dir(result.path / "r").read() if one.final]
    assert [(end.next_step, end.stop_reason) for end in ends] == [(4, None), (7, None)]
