"""What is kept of the attempts that a run learns from, and what is not."""

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config.run import RolloutsConfig
from evsys_sdk.record.layout import RunFiles
from evsys_sdk.record.run_files.rollouts import mean_reward, read_rollouts
from evsys_sdk.rollouts.rollout import Rollout, Turn
from evsys_sdk.training.callback import RunControl, RunInfo
from evsys_sdk.training.rollout_recorder import RolloutRecorder, find_extremes


def rollout(task: str, sample: int, reward: float | None, *, text: str = "answer", **more: Any) -> Rollout:
    message = {"role": "assistant", "content": text}
    turn = Turn(message, [1, 2], [3, 4], [-0.5, -0.25], output_tokens=len(text))
    status = "ok" if reward is not None else "infra"
    fields: dict[str, Any] = {"status": status, "turns": [turn], "seconds": 0.5, **more}
    return Rollout(task, sample, reward=reward, messages=[{"role": "user", "content": "q"}, message], **fields)


def record(folder: Path, steps: dict[int, list[Rollout]], *, done: int = 0, seed: int = 7, **settings: Any) -> None:
    recorder = RolloutRecorder(RolloutsConfig(**settings))
    recorder.on_run_start(RunInfo("e", "r", folder, {"seed": seed}, steps_done=done), RunControl())
    for step, rollouts in steps.items():
        recorder.on_rollouts(step, rollouts)
    recorder.close()


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "logs" / "training" / "rollouts.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def many(step: int, tasks: int = 20, samples: int = 4) -> list[Rollout]:
    rewards = [((step + task * samples + sample) * 0.1) % 1 for task in range(tasks) for sample in range(samples)]
    return [rollout(f"t{at // samples}", at % samples, reward) for at, reward in enumerate(rewards)]


def test_each_attempt_is_one_line_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    failed = rollout("b", 0, None, error="the verifier failed: boom", error_at="mine.py:3")
    record(tmp_path, {3: [rollout("a", 0, 1.0, info={"judge": "fine"}), rollout("a", 1, 0.0), failed]})
    first, second, third = lines(tmp_path)
    assert first == {
        "step": 3,
        "task_id": "a",
        "group": 0,
        "sample": 0,
        "status": "ok",
        "reward": 1.0,
        "tokens": 6,
        "turns": 1,
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "answer"}],
        "info": {"judge": "fine"},
    }
    assert (second["group"], second["sample"]) == (0, 1)
    assert (third["group"], third["reward"], third["error_at"]) == (1, None, "mine.py:3")
    assert third["error"] == "the verifier failed: boom"


def test_seconds_stand_apart_because_they_differ_each_time_and_are_read_back(tmp_path: Path) -> None:
    record(tmp_path, {1: [rollout("a", 0, 1.0), rollout("a", 1, 0.0, attempts=2)]})
    assert all("seconds" not in line for line in lines(tmp_path))
    timing = json.loads((tmp_path / "logs/training/rollout_timing.jsonl").read_text(encoding="utf-8"))
    assert timing == {"step": 1, "seconds": [0.5, 0.5], "attempts": [1, 2]}
    assert [line["seconds"] for line in read_rollouts(RunFiles(tmp_path))] == [0.5, 0.5]


def test_tokens_and_log_probabilities_are_kept_on_demand(tmp_path: Path) -> None:
    record(tmp_path / "without", {1: [rollout("a", 0, 1.0)]})
    record(tmp_path / "with", {1: [rollout("a", 0, 1.0)]}, tokens=True)
    assert "sampled" not in lines(tmp_path / "without")[0]
    assert lines(tmp_path / "with")[0]["sampled"] == [
        {"prompt": [1, 2], "completion": [3, 4], "logprobs": [-0.5, -0.25]}
    ]


def test_the_extremes_are_the_first_best_the_first_worst_and_the_longest() -> None:
    rollouts = [rollout("a", at, reward) for at, reward in enumerate([0.5, 1.0, 0.0, 1.0, 0.0])]
    rollouts.append(rollout("a", 5, 0.5, text="a long answer"))
    assert find_extremes(rollouts) == {1, 2, 5}
    assert find_extremes([rollout("a", 0, None)]) == set()


@pytest.mark.parametrize("settings", [{"share": 0.0}, {"share": 0.3}, {"max_mb": 0.0}, {"max_mb": 0.01}])
def test_rewards_are_kept_where_texts_are_not_and_give_the_mean_exactly(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    steps = {step: [*many(step), rollout("broken", 0, None, error="boom")] for step in (1, 2, 3)}
    record(tmp_path, steps, **settings)
    for step, rollouts in steps.items():
        recorded = [line for line in read_rollouts(RunFiles(tmp_path)) if line["step"] == step]
        rewards = [one.reward for one in rollouts if one.reward is not None]
        assert mean_reward(recorded) == sum(rewards) / len(rewards)
        assert len(recorded) == len(rollouts)
        assert "messages" in recorded[-1], "what failed is always kept"
        for at in find_extremes(rollouts):
            assert "messages" in recorded[at]
    dropped = {line.get("dropped") for line in lines(tmp_path)} - {None}
    assert dropped == {"share" if "share" in settings else "size"}


def test_a_share_keeps_whole_groups_and_about_that_many(tmp_path: Path) -> None:
    record(tmp_path, {step: many(step) for step in range(1, 21)}, share=0.3)
    groups: dict[tuple[int, str], list[bool]] = {}
    ordinary = [
        line
        for step in range(1, 21)
        for at, line in enumerate(line for line in lines(tmp_path) if line["step"] == step)
        if at not in find_extremes(many(step))
    ]
    for line in ordinary:
        groups.setdefault((line["step"], line["task_id"]), []).append("messages" in line)
    assert all(len(set(group)) == 1 for group in groups.values())
    assert 0.2 < sum(group[0] for group in groups.values()) / len(groups) < 0.4


def test_above_the_bound_long_messages_are_shortened(tmp_path: Path) -> None:
    record(tmp_path, {1: [rollout("a", 0, 1.0, text="x" * 5000)]}, max_mb=0.0)
    assert lines(tmp_path)[0]["messages"][-1]["content"] == "x" * 1000 + "… (4000 more characters)"


@pytest.mark.parametrize("settings", [{}, {"share": 0.4}, {"max_mb": 0.012}])
def test_a_resumed_run_leaves_the_same_bytes(settings: dict[str, Any], tmp_path: Path) -> None:
    steps = {step: many(step) for step in range(1, 7)}
    record(tmp_path / "whole", steps, **settings)
    record(tmp_path / "killed", {step: steps[step] for step in (1, 2, 3, 4)}, **settings)
    with (tmp_path / "killed/logs/training/rollouts.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "task')  # killed while it wrote
    record(tmp_path / "killed", {step: steps[step] for step in (3, 4, 5, 6)}, done=2, **settings)
    for name in ("rollouts.jsonl", "rollout_timing.jsonl"):
        whole = (tmp_path / "whole/logs/training" / name).read_bytes()
        assert (tmp_path / "killed/logs/training" / name).read_bytes() == whole
    assert lines(tmp_path / "whole")


def test_a_secret_in_an_answer_is_not_recorded(tmp_path: Path) -> None:
    record(tmp_path, {1: [rollout("a", 0, 1.0, text="use sk-abc123def456ghi789jkl0 for it")]})
    assert "sk-abc123" not in (tmp_path / "logs/training/rollouts.jsonl").read_text(encoding="utf-8")


def test_a_run_without_attempts_leaves_no_files(tmp_path: Path) -> None:
    record(tmp_path, {})
    assert not (tmp_path / "logs").exists()
