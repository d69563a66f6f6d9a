"""Observers cannot harm a run: not by failing, not by failing often, not by failing to close."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.errors import EvsysError
from evsys_sdk.protocols import RunResult
from evsys_sdk.training.callback import HOOKS, Callback, EvalRecord, Observers, RunControl, RunInfo

if TYPE_CHECKING:
    from .conftest import MakeInfo


class Recorder(Callback):
    """Notes each call, then does what the test asks for."""

    name = "recorder"

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.calls = fails, list[str]()

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self._note(f"step {step}")

    def on_eval(self, record: EvalRecord) -> None:
        self._note("eval")

    def on_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self._note("checkpoint")

    def on_run_end(self, result: RunResult) -> None:
        self._note("end")

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.fails:
            raise RuntimeError(f"no {call}")


def test_a_failing_observer_harms_neither_the_run_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Recorder(fails=True), Recorder()
    observers = Observers([bad, good])
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        observers.on_step(1, {})
        observers.on_eval(EvalRecord("", "val", 1, {}))
    assert good.calls == ["step 1", "eval"]
    assert caplog.messages == [
        "callback 'recorder' failed: RuntimeError: no step 1",
        "callback 'recorder' failed: RuntimeError: no eval",
    ]


def test_after_three_failures_in_a_row_it_is_left_alone_but_still_closed(caplog: pytest.LogCaptureFixture) -> None:
    bad = Recorder(fails=True)
    observers = Observers([bad])
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        for step in range(1, 6):
            observers.on_step(step, {})
        observers.on_run_end(RunResult("a", "completed"))
        observers.close()
    assert bad.calls == ["step 1", "step 2", "step 3", "close"]
    assert caplog.messages[2].endswith("it will not be called again in this run")


def test_a_success_in_between_starts_the_count_anew() -> None:
    bad = Recorder(fails=True)
    observers = Observers([bad])
    for step in range(1, 8):
        bad.fails = step % 3 != 0
        observers.on_step(step, {})
    assert len(bad.calls) == 7


def test_every_observer_is_closed_even_when_one_cannot_be() -> None:
    bad, good = Recorder(fails=True), Recorder()
    Observers([bad, good]).close()
    assert bad.calls == good.calls == ["close"]


def test_one_that_cannot_start_stops_the_run(make_info: MakeInfo) -> None:
    class Unstartable(Callback):
        def on_run_start(self, info: RunInfo, control: RunControl) -> None:
            raise EvsysError("no key. Set SOME_KEY.")

    with pytest.raises(EvsysError, match="Set SOME_KEY"):
        Observers([Recorder(), Unstartable()]).on_run_start(make_info(), RunControl())


def test_keyboard_interrupts_pass_through() -> None:
    class Interrupted(Callback):
        def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers([Interrupted()]).on_step(1, {})


def test_states_are_saved_and_restored_by_position() -> None:
    class Counter(Callback):
        name = "counter"

        def __init__(self, count: int = 0) -> None:
            self.count = count

        def state(self) -> dict[str, Any]:
            return {"count": self.count} if self.count else {}

        def restore(self, state: Mapping[str, Any]) -> None:
            self.count = state["count"]

    saved = Observers([Counter(1), Counter(), Counter(3)]).state()
    assert saved == {"0:counter": {"count": 1}, "2:counter": {"count": 3}}
    counters = [Counter(), Counter(), Counter()]
    Observers(counters).restore(saved)
    assert [counter.count for counter in counters] == [1, 0, 3]


def test_only_the_first_reason_to_stop_is_kept() -> None:
    control = RunControl()
    control.stop("first")
    control.stop("second", interrupted=True)
    assert (control.stop_reason, control.interrupted) == ("first", False)


def test_every_moment_of_a_callback_is_in_the_list_that_configs_are_checked_against() -> None:
    assert {name for name in vars(Callback) if name.startswith("on_")} == set(HOOKS)
