"""Progress: plain lines that never flood, and which terminals can be redrawn."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from evsys_sdk.observers.callbacks.print_progress import PrintProgress
from evsys_sdk.observers.progress.text import is_live_terminal
from evsys_sdk.protocols import RunResult
from evsys_sdk.training.callback import EvalRecord, RunControl

if TYPE_CHECKING:
    from .conftest import MakeInfo


class Clock:
    """Time that passes only when the test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plain_progress(**params: object) -> tuple[PrintProgress, Clock]:
    callback, clock = PrintProgress(**params), Clock()
    callback._clock = clock  # pyright: ignore[reportPrivateUsage]
    return callback, clock


def test_plain_output_of_a_whole_run(make_info: MakeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    callback, clock = plain_progress(metrics=["grad_norm"])
    callback.on_run_start(make_info(total_steps=40), RunControl())
    for step in range(1, 41):
        clock.now += 1.5
        metrics = {"loss": 4 / (step + 1), "learning_rate": 1e-4, "tokens": 600.0, "grad_norm": 0.5}
        callback.on_step(step, metrics)
        if step in (20, 40):
            callback.on_eval(EvalRecord("arithmetic", "val", step, {"pass@1": step / 80}))
            callback.on_checkpoint({"name": f"step{step:06d}", "step": step})
    callback.on_run_end(RunResult("arm-a", "completed"))
    callback.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "[arm-a] start: arithmetic, sft on mock, 40 steps",
        "[arm-a] 1/40 (2%)  loss 2  grad_norm 0.5  lr 0.0001  400 tok/s  58s left",
        "[arm-a] 8/40 (20%)  loss 0.4444  grad_norm 0.5  lr 0.0001  400 tok/s  48s left",
        "[arm-a] 15/40 (38%)  loss 0.25  grad_norm 0.5  lr 0.0001  400 tok/s  38s left",
        "[arm-a] step 20  eval val/arithmetic  pass@1 0.25",
        "[arm-a] step 20  checkpoint step000020",
        "[arm-a] 22/40 (55%)  loss 0.1739  grad_norm 0.5  lr 0.0001  400 tok/s  27s left",
        "[arm-a] 29/40 (72%)  loss 0.1333  grad_norm 0.5  lr 0.0001  400 tok/s  16s left",
        "[arm-a] 36/40 (90%)  loss 0.1081  grad_norm 0.5  lr 0.0001  400 tok/s  6s left",
        "[arm-a] 40/40 (100%)  loss 0.09756  grad_norm 0.5  lr 0.0001  400 tok/s",
        "[arm-a] step 40  eval val/arithmetic  pass@1 0.5 (+0.25)",
        "[arm-a] step 40  checkpoint step000040",
        "[arm-a] completed: 40 steps in 1m 00s, loss 2 -> 0.09756",
    ]


def test_a_failed_run_ends_with_its_reason(make_info: MakeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    callback, _ = plain_progress()
    control = RunControl()
    callback.on_run_start(make_info(), control)
    callback.on_step(1, {"loss": math.nan})
    control.stop("interrupted by the user", interrupted=True)
    callback.on_run_end(RunResult("arm-a", "failed", error="Traceback\n  ...\nTrainingError: loss became nan"))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[arm-a] 1/10 (10%)  loss nan",
        "[arm-a] failed: 1 step in 0s, stopped: interrupted by the user, TrainingError: loss became nan",
    ]


def test_a_quick_run_does_not_flood(make_info: MakeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    callback, clock = plain_progress()
    callback.on_run_start(make_info(total_steps=5000), RunControl())
    for step in range(1, 5001):
        clock.now += 0.001
        callback.on_step(step, {"loss": 1.0})
        callback.on_checkpoint({"name": f"step{step}", "step": step})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) < 20
    assert lines[-1] == "[arm-a] step 5000  checkpoint step5000"


def test_no_scoring_is_left_out_however_fast_they_follow(
    make_info: MakeInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, clock = plain_progress()
    callback.on_run_start(make_info(total_steps=50), RunControl())
    for step in range(1, 51):
        clock.now += 0.001
        callback.on_eval(EvalRecord("a", "val", step, {"pass@1": 0.5}))
        callback.on_eval(EvalRecord("b", "val", step, {"pass@1": 0.5}))
    assert capsys.readouterr().err.count(" eval val/") == 100


def test_a_score_that_was_shown_early_is_not_shown_again(
    make_info: MakeInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, _ = plain_progress()
    callback.on_run_start(make_info(), RunControl())
    for step, value in ((4, 0.25), (8, 0.5)):
        callback.on_scored(EvalRecord("a", "val", step, {"pass@1": value, "tasks": 4.0}))
        callback.on_eval(EvalRecord("a", "val", step, {"pass@1": value, "tasks": 4.0}))
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[arm-a] step 4  eval val/a  pass@1 0.25  4 tasks",
        "[arm-a] step 8  eval val/a  pass@1 0.5 (+0.25)  4 tasks",
    ]


def test_the_headline_is_the_measure_of_the_recipe(make_info: MakeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    callback, clock = plain_progress(every_steps=1)
    callback.on_run_start(replace(make_info(), measure="reward/mean", measure_mode="max"), RunControl())
    for step in range(1, 11):
        clock.now += 1
        callback.on_step(step, {"loss": -0.01 * step, "reward/mean": step / 10})
    callback.on_run_end(RunResult("arm-a", "completed"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "[arm-a] 10/10 (100%)  reward/mean 1"
    assert lines[-1] == "[arm-a] completed: 10 steps in 10s, reward/mean 0.1 -> 1"


def test_a_day_of_training_is_a_few_hundred_lines(make_info: MakeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    callback, clock = plain_progress()
    callback.on_run_start(make_info(total_steps=86_400), RunControl())
    for step in range(1, 86_401):
        clock.now += 1
        callback.on_step(step, {"loss": 1.0})
    assert 100 < len(capsys.readouterr().err.splitlines()) < 400


def test_lines_can_be_requested_by_steps(make_info: MakeInfo, capsys: pytest.CaptureFixture[str]) -> None:
    callback, _ = plain_progress(every_steps=4)
    callback.on_run_start(make_info(), RunControl())
    for step in range(1, 11):
        callback.on_step(step, {"loss": 1.0})
    shown = re.findall(r"(\d+)/10", capsys.readouterr().err)
    assert shown == ["1", "4", "8", "10"]


def test_a_run_of_unknown_length_shows_no_bar_and_no_end(
    make_info: MakeInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, clock = plain_progress()
    callback.on_run_start(make_info(total_steps=None, steps_done=6), RunControl())
    clock.now += 2
    callback.on_step(7, {"reward": 0.5})
    assert capsys.readouterr().err.splitlines() == [
        "[arm-a] start: arithmetic, sft on mock, resumed after step 6",
        "[arm-a] step 7  reward 0.5",
    ]


def test_the_time_left_is_that_of_this_attempt_not_of_the_steps_before_it(
    make_info: MakeInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, clock = plain_progress()
    callback.on_run_start(make_info(total_steps=100, steps_done=90), RunControl())
    clock.now += 2
    callback.on_step(91, {"loss": 1.0})
    assert "18s left" in capsys.readouterr().err


class Terminal:
    """A stderr that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "live"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm", "CI": "false"}, True),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_only_a_watched_terminal_is_redrawn(
    environment: dict[str, str], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert is_live_terminal(environment) is live
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    assert is_live_terminal(environment) is False


def test_a_pipe_is_never_redrawn(capfd: pytest.CaptureFixture[str]) -> None:
    assert is_live_terminal({"TERM": "xterm"}) is False


def test_an_empty_batch_neither_becomes_the_headline_nor_hides_it(
    make_info: MakeInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, _ = plain_progress(every_steps=1)
    callback.on_run_start(make_info(total_steps=5), RunControl())
    for step, metrics in enumerate(({}, {"empty_batch": 1.0}, {"loss": 0.5}, {"empty_batch": 1.0}), 1):
        callback.on_step(step, metrics)
    assert [line.removeprefix("[arm-a] ") for line in capsys.readouterr().err.splitlines()[1:]] == [
        "1/5 (20%)",
        "2/5 (40%)  empty_batch 1",
        "3/5 (60%)  loss 0.5",
        "4/5 (80%)  loss 0.5",
    ]
