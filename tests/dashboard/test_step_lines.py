"""A step is the same line, however quickly it was encoded."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.dashboard.client import mirror
from evsys_sdk.dashboard.client.mirror import StepLines
from evsys_sdk.errors import DataError
from evsys_sdk.record.jsonable import encode_line
from evsys_sdk.record.run_files.metrics import metrics_record

NOW = 1_790_000_000.25
NUMBERS = st.one_of(st.floats(), st.integers(), st.booleans(), st.floats().map(np.float64))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror.time, "time", lambda: NOW)


def expected(run: str, step: int, metrics: dict[str, Any]) -> bytes:
    return encode_line({"kind": "step", "run": run, "at": NOW, "line": metrics_record(step, metrics)}, "a step")


@given(
    st.text(max_size=8),
    st.lists(st.text(max_size=8), max_size=3, unique=True).flatmap(
        lambda names: st.lists(st.fixed_dictionaries(dict.fromkeys(names, NUMBERS)), min_size=2, max_size=4)
    ),
)
def test_every_step_is_what_the_encoder_of_all_records_gives(run: str, steps: list[dict[str, Any]]) -> None:
    if any(name in ("step", "_nonfinite") for name in steps[0]):
        return
    lines = StepLines()
    for position, metrics in enumerate(steps):
        assert lines.encode(run, position, metrics) == expected(run, position, metrics)


@pytest.mark.parametrize(
    "metrics",
    [
        {"100%": 1.0, "%s": 2.0, '"quoted"\\': 3.0},
        {"loss": math.nan, "lr": math.inf},
        {"loss": 1.7e308, "again": 1.7e308},
        {"huge": 10**400, "loss": 0.5},
        {"tokens_per_second": 12.5, "eval/token_accuracy": 1},
        {"password": 123456},
        {},
    ],
)
def test_unusual_names_and_numbers_are_written_alike_every_time(metrics: dict[str, Any]) -> None:
    lines = StepLines()
    assert {lines.encode("run", 1, metrics) for _ in range(3)} == {expected("run", 1, metrics)}


def test_a_secret_in_a_name_or_a_run_is_hidden_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_API_KEY", "a-very-secret-value")
    lines = StepLines()
    for step in range(3):
        line = lines.encode("run-a-very-secret-value", step, {"a-very-secret-value": 0.5})
        assert b"a-very-secret-value" not in line
        assert json.loads(line)["line"]["step"] == step


def test_a_step_that_is_no_number_is_refused_also_after_good_ones() -> None:
    lines = StepLines()
    lines.encode("run", 1, {"loss": 0.5})
    with pytest.raises(DataError, match="metric 'loss' is not a number"):
        lines.encode("run", 2, {"loss": "high"})


def test_runs_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_MOST_FORMS", 10)
    lines = StepLines()
    for number in range(100):
        assert lines.encode(f"r{number}", 1, {"loss": 0.5}) == expected(f"r{number}", 1, {"loss": 0.5})
    assert len(lines._forms) <= 10  # pyright: ignore[reportPrivateUsage]
