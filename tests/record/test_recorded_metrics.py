"""Numbers in records: they round-trip, what JSON lacks is marked, and every score has one name."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import DataError
from evsys_sdk.record.run_files.metrics import metrics_record, restore_nonfinite
from evsys_sdk.training.callback import EvalRecord


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: name not in ("step", "_nonfinite")), st.floats()))
def test_every_float_survives_the_way_through_strict_json(metrics: dict[str, float]) -> None:
    text = json.dumps(metrics_record(3, metrics), allow_nan=False)
    back = restore_nonfinite(json.loads(text))
    assert back.pop("step") == 3
    assert back.keys() == metrics.keys()
    for name, value in metrics.items():
        assert back[name] == value or (math.isnan(back[name]) and math.isnan(value))


def test_what_json_lacks_is_null_and_says_what_it_was() -> None:
    record = metrics_record(1, {"loss": math.nan, "up": math.inf, "down": -math.inf, "lr": 0.1})
    assert record == {
        "step": 1,
        "loss": None,
        "up": None,
        "down": None,
        "lr": 0.1,
        "_nonfinite": {"loss": "NaN", "up": "Infinity", "down": "-Infinity"},
    }


def test_numpy_scalars_become_plain_numbers() -> None:
    record = metrics_record(1, {"a": np.float32(0.5), "b": np.int64(3), "c": np.array(2.0), "d": True})  # pyright: ignore[reportArgumentType]
    assert [type(record[name]) for name in "abcd"] == [float, int, float, int]
    assert record == {"step": 1, "a": 0.5, "b": 3, "c": 2.0, "d": 1}


@pytest.mark.parametrize("value", ["high", None, [1.0], {"a": 1}])
def test_a_metric_that_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(DataError, match="metric 'loss' is not a number"):
        metrics_record(1, {"loss": value})  # pyright: ignore[reportArgumentType]


def test_a_metric_may_repeat_the_step_but_not_contradict_it() -> None:
    assert metrics_record(2, {"step": 2, "loss": 1.0}) == {"step": 2, "loss": 1.0}
    with pytest.raises(DataError, match=r"metric 'step'.*Rename it"):
        metrics_record(2, {"step": 7})
    with pytest.raises(DataError, match="metric 'name'"):
        metrics_record(2, {"name": 1.0}, name="arithmetic")


@pytest.mark.parametrize(
    ("name", "split", "metric", "expected"),
    [
        ("val", "val", "pass@1", "val/val/pass@1"),
        ("", "test", "pass@1", "test/pass@1"),
        ("arithmetic", "val", "pass@1", "val/arithmetic/pass@1"),
        ("arithmetic", "val", "val/pass@1", "val/pass@1"),
    ],
)
def test_scores_are_named_by_split_and_benchmark(name: str, split: str, metric: str, expected: str) -> None:
    assert EvalRecord(name, split, 5, {metric: 0.5}).named_metrics == {expected: 0.5}
