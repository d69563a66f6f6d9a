"""Which experiments are shown, in which order, and below whom."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import DataError
from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.query import ORDERS, Filters, check_status, check_verdict, count, parse_since, select

from .recorded import BEGAN, DAY, write_experiment


@pytest.fixture
def root(tmp_path: Path) -> Path:
    note = {"id": "1", "time": 1.0, "kind": "note", "text": "Looks 100% overfitted."}
    write_experiment(tmp_path, "alpha", verdict="supported", runs={"base": 0.4, "changed": 0.9})
    write_experiment(tmp_path, "beta", verdict="refuted", algorithm="rl", started=BEGAN + DAY, events=[note])
    write_experiment(tmp_path, "gamma", verdict=None, status="failed", started=BEGAN + 2 * DAY, description="Long run")
    write_experiment(tmp_path, "delta", started=BEGAN + 3 * DAY, metadata={"tags": ["routing", "Big"]}, mode="min")
    return tmp_path


def names(root: Path, sort: str = "oldest", **filters: Any) -> list[str]:
    with HistoryIndex([root]) as index:
        found = select(index, Filters(**filters), sort=sort)
        assert count(index, Filters(**filters)) == len(found)
    return [one.name for one in found]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["alpha", "beta", "gamma", "delta"]),
        ({"statuses": ["failed"]}, ["gamma"]),
        ({"statuses": ["failed", "completed"]}, ["alpha", "beta", "gamma", "delta"]),
        ({"verdicts": ["supported", "refuted"]}, ["alpha", "beta"]),
        ({"verdicts": ["none"]}, ["gamma"]),
        ({"tags": ["big"]}, ["delta"]),
        ({"tags": ["routing", "BIG"]}, ["delta"]),
        ({"tags": ["rout"]}, []),
        ({"algorithm": "rl"}, ["beta"]),
        ({"algorithm": "r"}, []),
        ({"model": "TIN"}, ["alpha", "beta", "gamma", "delta"]),
        ({"since": BEGAN + 1.5 * DAY}, ["gamma", "delta"]),
        ({"metric_above": 0.7}, ["alpha"]),
        ({"search": "100% OVERFITTED"}, ["beta"]),
        ({"search": "change helps delta"}, ["delta"]),
        ({"search": "long run"}, ["gamma"]),
        ({"search": "verdict supported"}, ["alpha"]),
        ({"search": "'; DROP TABLE experiments; --"}, []),
        ({"search": "%"}, ["beta"]),
        ({"verdicts": ["supported"], "algorithm": "rl"}, []),
    ],
)
def test_filters_leave_what_meets_all_of_them(root: Path, filters: dict[str, Any], expected: list[str]) -> None:
    assert names(root, **filters) == expected


def test_orders(root: Path) -> None:
    assert names(root, "newest") == ["delta", "gamma", "beta", "alpha"]
    assert names(root, "name") == ["alpha", "beta", "delta", "gamma"]
    assert names(root, "score")[:2] == ["delta", "alpha"] or names(root, "score")[0] == "alpha"


@pytest.mark.parametrize("sort", list(ORDERS))
def test_the_database_and_several_roots_sort_alike(root: Path, tmp_path: Path, sort: str) -> None:
    (tmp_path / "empty").mkdir()
    with HistoryIndex([root]) as one, HistoryIndex([root, tmp_path / "empty"]) as two:
        assert [found.id for found in select(one, sort=sort)] == [found.id for found in select(two, sort=sort)]


def test_words_that_do_not_exist_are_refused_with_the_closest() -> None:
    with pytest.raises(DataError, match=r"--status 'complete'.*Did you mean 'completed'"):
        check_status("complete")
    with pytest.raises(DataError, match=r"--verdict 'xyz'.*Choose among supported"):
        check_verdict("xyz")


def test_times_may_be_dates_or_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_since("2025-10-09") == pytest.approx(time.mktime((2025, 10, 9, 0, 0, 0, 0, 0, -1)))
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert parse_since("2d") == 1e9 - 2 * DAY
    assert parse_since("1.5h") == 1e9 - 5400
    with pytest.raises(DataError, match=r"this is not a date\. Write one as 2026-01-31"):
        parse_since("yesterday")
