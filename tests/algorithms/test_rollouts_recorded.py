"""What recipes learn from is on disk, and gives the numbers of each step exactly."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.algorithms.distillation import reverse_kl
from evsys_sdk.record.layout import RunFiles
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.record.run_files.rollouts import mean_reward, read_rollouts

type Train = Callable[..., Any]

WORDS = ["red", "green", "blue", "white"]
SHORT: dict[str, Any] = {"max_steps": 4, "batch_size": 3, "sampling": {"max_tokens": 8}}
SMALL = {"share": 0.2, "max_mb": 0.004}


def task(number: int, fn_name: str = "exact_match") -> dict[str, Any]:
    verifier = {"kind": "in_process", "fn_name": fn_name, "expected": WORDS[number % 4]}
    text = f"Number {number}, colours:\n- red\n- green\n- blue\n- white\nAnswer with one of them."
    return {"task_id": f"t{number}", "instruction": text, "verifier": verifier}


TASKS = [task(number) for number in range(6)]


def by_step(run_dir: Path) -> dict[int, list[dict[str, Any]]]:
    lines = list(read_rollouts(RunFiles(run_dir)))
    return {step: list(own) for step, own in groupby(lines, key=lambda line: line["step"])}


@pytest.mark.parametrize("more", [{}, {"max_staleness": 1}, {"overlong_penalty": 0.5}])
def test_rollouts_on_disk_give_the_mean_reward_of_each_step_exactly(train: Train, more: dict[str, Any]) -> None:
    trained = train("rl", TASKS, params={**SHORT, "group_size": 8, **more}, rollouts=SMALL)
    rewards = by_step(trained.run_dir)
    assert [mean_reward(lines) for lines in rewards.values()] == trained.curve("reward/mean")
    assert [len(lines) for lines in rewards.values()] == [24] * 4
    assert any("dropped" in line for lines in rewards.values() for line in lines)
    assert any("messages" in line for lines in rewards.values() for line in lines)
    groups = {(line["group"], line["task_id"]) for line in rewards[1]}
    assert [group for group, _ in sorted(groups)] == [0, 1, 2]


def test_rollouts_of_several_updates_are_recorded_once_with_the_first(train: Train) -> None:
    params = {**SHORT, "group_size": 8, "updates_per_batch": 2, "loss_fn": "ppo"}
    trained = train("rl", TASKS, params=params)
    steps = by_step(trained.run_dir)
    assert list(steps) == [1, 3]
    curve = trained.curve("reward/mean")
    assert curve == [mean_reward(steps[step]) for step in (1, 1, 3, 3)]


@pytest.mark.parametrize("divergence", ["forward", "sampled"])
@pytest.mark.parametrize("more", [{}, {"skip_tokens": 2}])
def test_answers_of_sdft_give_its_divergence_exactly(
    train: Train, chats: list[dict[str, Any]], divergence: str, more: dict[str, Any]
) -> None:
    trained = train("sdft", chats, params={**SHORT, "divergence": divergence, **more})
    check_divergence(trained)


def test_answers_of_opd_give_its_divergence_exactly(train: Train, chats: list[dict[str, Any]]) -> None:
    teacher = train("sft", chats, params={"max_steps": 3})
    trained = train("opd", chats, params={**SHORT, "teacher": teacher.result.artifacts["final_sampler"]})
    check_divergence(trained)


def check_divergence(trained: Any) -> None:
    steps = by_step(trained.run_dir)
    for lines, expected in zip(steps.values(), trained.curve("teacher/reverse_kl"), strict=True):
        judged = [line for line in lines if line["reward"] is not None]
        rewards, sizes = [line["reward"] for line in judged], [line["info"]["teacher_tokens"] for line in judged]
        assert reverse_kl(rewards, sizes) == expected
        assert all(line["messages"][-1]["role"] == "assistant" for line in judged)
        assert all(line["task_id"].startswith("row") for line in lines)
    assert len(steps) == 4


def test_an_answer_without_room_is_recorded_with_the_reason(train: Train, chats: list[dict[str, Any]]) -> None:
    long = {"messages": [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "x"}]}
    params = {**SHORT, "batch_size": 13}
    trained = train("sdft", [*chats, long], params=params, backend={"kind": "mock", "params": {"context_length": 512}})
    [failed] = [line for line in by_step(trained.run_dir)[1] if line["reward"] is None]
    assert failed["task_id"] == "row13"
    assert "fills the context" in failed["error"]


def test_later_stages_count_on(train: Train, chats: list[dict[str, Any]]) -> None:
    stages = [
        {"kind": "sdft", "params": {**SHORT, "max_steps": 2}},
        {"kind": "sdft", "params": {**SHORT, "max_steps": 2}},
    ]
    trained = train("combo", chats, params={"phases": stages})
    assert trained.result.status == "completed", trained.result.error
    assert list(by_step(trained.run_dir)) == [1, 2, 3, 4]


def test_a_finding_is_in_the_result_and_in_the_record(train: Train) -> None:
    hopeless = [{**row, "verifier": {**row["verifier"], "expected": "no such colour"}} for row in TASKS]
    trained = train("rl", hopeless, params={**SHORT, "group_size": 4, "max_steps": 8})
    assert trained.result.status == "failed"
    assert "the rewards of all rollouts of steps 1 to 5 are 0" in str(trained.result.error)
    [finding] = trained.result.notes.findings
    assert "rewards of all rollouts of steps 1 to 3 are 0" in finding
    [run] = ExperimentRecord(trained.run_dir.parent).runs
    assert run.findings == (finding,)
    assert run.result is not None
    assert run.result["extras"]["findings"] == [finding]
