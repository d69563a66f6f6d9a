"""What is said about the attempts a run learns from; and that a healthy run hears nothing."""

import json
import logging
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.record.events import Journal, Kind, read_events
from evsys_sdk.rollouts.rollout import Rollout, Turn
from evsys_sdk.training.callback import RunControl, RunInfo
from evsys_sdk.training.diagnosis import Diagnosis


def rollout(reward: float | None, *, task: str = "t", text: str = "", n_tokens: int = 10, cut: bool = False) -> Rollout:
    message = {"role": "assistant", "content": text}
    status = "infra" if reward is None else "truncated" if cut else "ok"
    error = "the sandbox is gone" if reward is None else None
    return Rollout(task, 0, status, reward, [Turn(message, output_tokens=n_tokens)], [message], error)


def step_of(rewards: Iterable[float | None], **more: Any) -> list[Rollout]:
    return [rollout(reward, text=f"answer {at}", **more) for at, reward in enumerate(rewards)]


def diagnose(steps: Sequence[Sequence[Rollout]]) -> list[str]:
    diagnosis = Diagnosis()
    for number, rollouts in enumerate(steps, 1):
        diagnosis.on_rollouts(number, rollouts)
    return diagnosis.findings()


def coins(chance: float, n: int, seed: int) -> list[float]:
    dice = random.Random(seed)
    return [float(dice.random() < chance) for _ in range(n)]


def test_equal_rewards_are_named_with_their_steps_and_value() -> None:
    [text] = diagnose([step_of([0.0] * 8)] * 4)
    assert "rewards of all rollouts of steps 1 to 3 are 0, so there is no gradient" in text
    assert "evsys rollouts" in text


def test_equal_rewards_of_equal_answers_are_called_that() -> None:
    same = [rollout(0.0, text="always this") for _ in range(8)]
    [text] = diagnose([same] * 3)
    assert "All rollouts of a task have the same text" in text


def test_a_task_that_was_solved_from_the_start_is_distinguished_from_one_that_is_too_hard() -> None:
    [text] = diagnose([step_of([1.0] * 8)] * 3)
    assert "harder tasks" in text


def test_rewards_that_become_equal_because_everything_is_learned_are_healthy() -> None:
    learning = [step_of(coins(step / 10, 16, step)) for step in range(1, 10)]
    assert diagnose([*learning, *[step_of([1.0] * 16)] * 6]) == []


def test_a_step_in_which_all_attempts_failed_is_named_at_once_with_the_cause() -> None:
    [text] = diagnose([step_of([None] * 8)])
    assert "all 8 rollouts of step 1 failed" in text
    assert "the sandbox is gone" in text


def test_many_failures_are_named_once_they_last() -> None:
    often: list[float | None] = [None, 0.0, None, 1.0]
    assert diagnose([step_of(often)] * 2) == []
    [text] = diagnose([step_of(often)] * 3)
    assert "6 of 12 rollouts of steps 1 to 3 failed" in text


def test_few_failures_are_no_finding() -> None:
    assert diagnose([step_of([None, 0.0, 1.0, 1.0, 0.0, 0.0])] * 10) == []


def test_a_reward_that_falls_and_stays_low_is_named() -> None:
    good = [step_of(coins(0.8, 64, step)) for step in range(10)]
    bad = [step_of(coins(0.1, 64, step)) for step in range(10)]
    [text] = diagnose([*good, *bad])
    assert "mean reward fell from 0.8" in text
    assert "learning_rate" in text


def test_one_bad_step_is_no_collapse() -> None:
    good = [step_of(coins(0.8, 64, step)) for step in range(10)]
    assert diagnose([*good, step_of(coins(0.1, 64, 99)), *good]) == []


@pytest.mark.slow
def test_healthy_runs_that_are_noisy_stay_silent() -> None:
    """Small batches whose tasks differ in difficulty: level, learning and plateaus, two hundred runs of a hundred."""
    findings = 0
    for run in range(200):
        dice = random.Random(run)
        steps: list[list[Rollout]] = []
        for step in range(100):
            level = 0.5 if run % 2 else min(0.9, 0.1 + step / 60)
            chance = min(max(dice.gauss(level, 0.2), 0.05), 0.95)
            steps.append(step_of(coins(chance, 16, dice.randrange(10**9)), n_tokens=dice.randrange(20, 60)))
        findings += bool(diagnose(steps))
    assert findings <= 2


def test_answers_that_grow_until_they_are_cut_off_are_named() -> None:
    short = [step_of(coins(0.5, 16, step), n_tokens=40) for step in range(6)]
    long = [step_of(coins(0.5, 16, step), n_tokens=256, cut=True) for step in range(6)]
    [text] = diagnose([*short, *long])
    assert "answers have grown from 40 to" in text
    assert "max_tokens" in text


def test_answers_that_grow_and_end_by_themselves_are_healthy() -> None:
    short = [step_of(coins(0.5, 16, step), n_tokens=40) for step in range(6)]
    long = [step_of(coins(0.6, 16, step), n_tokens=200) for step in range(6)]
    assert diagnose([*short, *long]) == []


def test_a_finding_goes_into_the_log_and_once_into_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal.of(tmp_path) as journal:
        journal.append(Kind.STARTED)
    for _ in range(2):  # the second is a run that was resumed from its beginning
        diagnosis = Diagnosis()
        diagnosis.on_run_start(RunInfo("e", "arm", tmp_path / "arm", {}), RunControl())
        with caplog.at_level(logging.WARNING, "evsys_sdk"):
            for step in range(1, 7):
                diagnosis.on_rollouts(step, step_of([0.0] * 4))
    assert len([line for line in caplog.messages if "rewards of all rollouts" in line]) == 2
    [found] = [event for event in read_events(tmp_path) if event.kind == Kind.DIAGNOSED]
    assert (found.text("arm"), found.text("finding"), found.get("step")) == ("arm", "equal", 3)


def test_a_resumed_run_continues_watching_where_it_was() -> None:
    good = [step_of(coins(0.8, 64, step)) for step in range(10)]
    bad = [step_of(coins(0.1, 64, step)) for step in range(10)]
    whole, resumed = Diagnosis(), Diagnosis()
    for number, rollouts in enumerate([*good, *bad], 1):
        whole.on_rollouts(number, rollouts)
        if number == 11:
            resumed.restore(json.loads(json.dumps(whole.state())))
        if number >= 12:
            resumed.on_rollouts(number, rollouts)
    assert resumed.findings() == whole.findings() != []
    assert resumed.state() == whole.state()


@pytest.mark.parametrize("killed_after", [4, 9, 10])
def test_a_resumed_run_judges_the_loss_by_all_of_its_first_steps(tmp_path: Path, killed_after: int) -> None:
    whole, resumed = Diagnosis(), Diagnosis()
    for step in range(1, 13):
        for monitor in [whole] if step <= killed_after else [whole, resumed]:
            monitor.on_run_start(RunInfo("e", "arm", tmp_path / "arm", {}, measure="loss"), RunControl())
            monitor.on_step(step, {"loss": 9.0, "learning_rate": 0.03})
        if step == killed_after:
            resumed.restore(json.loads(json.dumps(whole.state())))
    assert resumed.findings() == whole.findings() != []


def test_a_loss_that_does_not_move_in_the_first_steps_is_named(tmp_path: Path) -> None:
    def findings(losses: Sequence[float], warm: bool = False) -> list[str]:
        diagnosis = Diagnosis()
        diagnosis.on_run_start(RunInfo("e", "arm", tmp_path / "arm", {}), RunControl())
        for step, loss in enumerate(losses, 1):
            diagnosis.on_step(step, {"loss": loss, "learning_rate": 1e-9 * (step if warm else 1)})
        return diagnosis.findings()

    dice = random.Random(0)
    [text] = findings([2.5 + dice.uniform(0, 0.002) for _ in range(12)])
    assert "did not fall in the first 10 steps" in text
    assert "learning rate of 1e-09" in text
    assert findings([2.5 - 0.05 * step for step in range(12)]) == []
    assert findings([0.01] * 12) == [], "there is nothing left to learn"
    assert findings([2.5] * 12, warm=True) == [], "the learning rate still rises"
