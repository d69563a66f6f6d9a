"""Early stopping: what counts as better, what counts as patience, and that a resume continues counting."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from evsys_sdk.observers.callbacks.early_stopping import EarlyStopping
from evsys_sdk.protocols import RunResult
from evsys_sdk.training.callback import EvalRecord, RunControl

if TYPE_CHECKING:
    from .conftest import MakeInfo


def started(make_info: MakeInfo, **params: object) -> tuple[EarlyStopping, RunControl]:
    callback, control = EarlyStopping(**params), RunControl()
    callback.on_run_start(make_info(), control)
    return callback, control


def stops_at(make_info: MakeInfo, values: Iterable[float], **params: object) -> int | None:
    """The step at which a run with these losses is stopped."""
    callback, control = started(make_info, metric="loss", **params)
    for step, value in enumerate(values, 1):
        callback.on_step(step, {"loss": value})
        if control.stop_reason:
            return step
    return None


def test_it_stops_when_patience_runs_out(make_info: MakeInfo) -> None:
    assert stops_at(make_info, [3, 2, 2.5, 2.4, 2.3], patience=3) == 5
    assert stops_at(make_info, [3, 2, 2.5, 2.4, 1.9, 2, 2], patience=3) is None


def test_an_equal_value_is_no_improvement(make_info: MakeInfo) -> None:
    assert stops_at(make_info, [1, 1, 1], patience=2) == 3


def test_larger_can_be_better(make_info: MakeInfo) -> None:
    assert stops_at(make_info, [1, 2, 3, 2, 1], mode="max", patience=2) == 5
    assert stops_at(make_info, [1, 2, 3, 4, 5], mode="max", patience=1) is None


def test_small_gains_do_not_count_but_add_up(make_info: MakeInfo) -> None:
    # Each step gains 0.04, which is less than 0.1; against the best value the third one is 0.12 better.
    losses = [1.0, 0.96, 0.92, 0.88, 0.84, 0.80, 0.76]
    assert stops_at(make_info, losses, min_delta=0.1, patience=3) is None
    assert stops_at(make_info, losses, min_delta=0.1, patience=2) == 3


def test_it_waits_for_min_steps(make_info: MakeInfo) -> None:
    assert stops_at(make_info, [1] * 10, patience=1, min_steps=6) == 6


def test_nan_never_is_an_improvement(make_info: MakeInfo) -> None:
    assert stops_at(make_info, [math.nan, math.nan], patience=2) == 2
    assert stops_at(make_info, [1, math.nan, -math.inf], patience=2) == 3


def test_the_reason_names_metric_value_and_step(make_info: MakeInfo) -> None:
    callback, control = started(make_info, metric="val/pass@1", mode="max", patience=2)
    for step, score in [(10, 0.5), (20, 0.4), (30, 0.5)]:
        callback.on_eval(EvalRecord("", "val", step, {"pass@1": score}))
    expected = "early_stopping: val/pass@1 did not improve on 0.5 (step 10) 2 times in a row"
    assert control.stop_reason == expected
    assert not control.interrupted


def test_the_short_name_finds_the_score_of_a_named_benchmark(
    make_info: MakeInfo, caplog: pytest.LogCaptureFixture
) -> None:
    callback, control = started(make_info, metric="val/pass@1", mode="max", patience=2)
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        for step in (1, 2):
            callback.on_eval(EvalRecord("adding", "val", step, {"pass@1": step / 10}))
            callback.on_eval(EvalRecord("dividing", "val", step, {"pass@1": 0.0}))
    assert control.stop_reason is None  # the scores of the other benchmark are not mixed in
    assert [record.getMessage() for record in caplog.records] == [
        "early_stopping: 'val/pass@1' names several scores; watching 'val/adding/pass@1', not 'val/dividing/pass@1'. "
        "Write the full name."
    ]


def test_other_splits_are_not_watched(make_info: MakeInfo) -> None:
    callback, control = started(make_info, metric="val/pass@1", mode="max", patience=1)
    for step in range(1, 5):
        callback.on_eval(EvalRecord("", "test", step, {"pass@1": 0.0}))
    assert control.stop_reason is None


def test_a_resumed_run_continues_counting(make_info: MakeInfo) -> None:
    losses = [3, 2, 2.5, 2.4, 2.3]
    first, _ = started(make_info, metric="loss", patience=3)
    for step, loss in enumerate(losses[:3], 1):
        first.on_step(step, {"loss": loss})
    second, control = started(make_info, metric="loss", patience=3)
    second.restore(first.state())
    for step, loss in enumerate(losses[3:], 4):
        assert control.stop_reason is None
        second.on_step(step, {"loss": loss})
    assert control.stop_reason == "early_stopping: loss did not improve on 2 (step 2) 3 times in a row"


def test_nothing_seen_means_nothing_to_save(make_info: MakeInfo) -> None:
    callback, _ = started(make_info, metric="loss")
    assert callback.state() == {}


def test_a_metric_that_never_came_is_reported(make_info: MakeInfo, caplog: pytest.LogCaptureFixture) -> None:
    callback, _ = started(make_info, metric="val/los")
    callback.on_step(1, {"lr": 0.1})
    callback.on_eval(EvalRecord("", "val", 1, {"loss": 1.0}))
    with caplog.at_level(logging.WARNING, logger="evsys_sdk"):
        callback.on_run_end(RunResult("a", "completed"))
    assert caplog.messages == [
        "early_stopping: the metric 'val/los' was never logged; did you mean 'val/loss'? Logged metrics: lr, val/loss."
    ]


@pytest.mark.parametrize(
    "params", [{}, {"metric": ""}, {"metric": "a", "patience": 0}, {"metric": "a", "min_delta": -1}]
)
def test_senseless_params_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EarlyStopping(**params)
