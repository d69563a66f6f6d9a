"""The digest holds what matters most, fits its budget, and is the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.history.context import make_digest
from evsys_sdk.history.digest import Digest, Item, Section
from evsys_sdk.history.filters import Filters
from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.reasons import grouped_reasons

from .recorded import BEGAN, write_experiment


@pytest.fixture
def root(tmp_path: Path) -> Path:
    invalid = {"id": "1", "time": 1.0, "kind": "invalidated", "reason": "The test set leaked."}
    note = {"id": "2", "time": 2.0, "kind": "note", "text": "Ask for more data."}
    best = {"base": 0.4, "changed": 0.8}
    write_experiment(tmp_path, "winner", verdict="supported", runs=best, params={"rank": 8})
    write_experiment(tmp_path, "hopeful", verdict="promising_unconfirmed", started=BEGAN + 1, params={"rank": 32})
    write_experiment(tmp_path, "leaked", verdict="supported", runs={"base": 0.4, "changed": 0.99}, events=[invalid])
    write_experiment(tmp_path, "broken", verdict="inconclusive", algorithm="rl", events=[note])
    write_experiment(
        tmp_path,
        "crashed",
        verdict=None,
        status="failed",
        runs={"only": 0.1},
        failed={"only__seed42": "TrainingError: NaN at step 12.", "only__seed43": "TrainingError: NaN at step 99."},
    )
    write_experiment(tmp_path, "stopped", verdict=None, status="interrupted", runs={"only": 0.2})
    return tmp_path


def digest(root: Path, style: str = "text", **options: Any) -> str:
    with HistoryIndex([root]) as index:
        return make_digest(index, **options).fit(style)


def data(root: Path, **options: Any) -> dict[str, Any]:
    return json.loads(digest(root, "json", **options))


def test_the_best_is_the_best_that_counts_with_how_sure_it_is(root: Path) -> None:
    best = data(root)["best"]
    assert [(one["id"], one["score"], one["verdict"]) for one in best] == [("winner-0a1b2c3d", 0.8, "supported")]
    line = next(line for line in digest(root).splitlines() if "winner-0a1b2c3d, run changed" in line)
    assert "0.8 [0.7, 0.9]" in line
    assert "(supported, 2 seeds, 20 tasks)" in line


def test_a_best_that_is_not_sure_is_shown_beside_the_best_that_is(root: Path) -> None:
    write_experiment(root, "lucky", verdict="inconclusive", runs={"base": 0.4, "changed": 0.95})
    assert [one["id"] for one in data(root)["best"]] == ["lucky-0a1b2c3d", "winner-0a1b2c3d"]


def test_less_can_be_better(tmp_path: Path) -> None:
    write_experiment(tmp_path, "low", mode="min", runs={"base": 0.4, "changed": 0.1}, metric="cost")
    write_experiment(tmp_path, "high", mode="min", runs={"base": 0.4, "changed": 0.3}, metric="cost")
    found = data(tmp_path)
    assert found["best"][0]["id"] == "low-0a1b2c3d"
    assert found["tried"][0]["best"] == {"score": 0.1, "id": "low-0a1b2c3d"}


def test_open_questions_are_the_promising_first_with_what_to_do_next(root: Path) -> None:
    found = data(root)["open_questions"]
    assert [(one["id"], one["next"]) for one in found] == [
        ("hopeful-0a1b2c3d", "Add seeds to hopeful."),
        ("broken-0a1b2c3d", "Add seeds to broken."),
    ]


def test_what_was_tried_is_grouped_by_algorithm_and_value(root: Path) -> None:
    sft = next(one for one in data(root)["tried"] if one["algorithm"] == "sft")
    assert sft["experiments"] == 5
    assert sft["params"]["rank"]["8"] == {"experiments": 1, "mean_score": 0.8, "best_score": 0.8}
    assert "rank 8: 0.8 (1), 32: 0.6 (1)" in digest(root)


def test_reasons_are_counted_once(root: Path) -> None:
    (failed,) = data(root)["failed"]
    assert (failed["count"], failed["last_in"]) == (2, "crashed-0a1b2c3d")


def test_unfinished_invalidated_notes_and_spend_are_there(root: Path) -> None:
    found = data(root)
    assert [one["id"] for one in found["unfinished"]] == ["stopped-0a1b2c3d"]
    assert found["invalidated"] == [{"id": "leaked-0a1b2c3d", "reason": "The test set leaked."}]
    assert found["notes"] == [{"id": "broken-0a1b2c3d", "text": "Ask for more data."}]
    assert found["spend"][0]["experiments"] == 6
    assert found["spend"][0]["usd"] == pytest.approx(5.0)


def test_the_goal_is_what_was_said_or_what_tags_and_hypotheses_say(root: Path) -> None:
    assert data(root, goal="Route well.")["goal"] == [{"goal": "Route well."}]
    assert data(root)["goal"][0] == {"tags": {"routing": 6}}


def test_filters_narrow_it(root: Path) -> None:
    found = data(root, filters=Filters(algorithm="rl"))
    assert found["spend"][0]["experiments"] == 1
    assert found["best"][0]["id"] == "broken-0a1b2c3d"


@pytest.mark.parametrize("style", ["text", "markdown", "json"])
@pytest.mark.parametrize("budget", [200, 400, 800, 1500])
def test_it_fits_its_budget_and_says_what_was_left_out(tmp_path: Path, style: str, budget: int) -> None:
    for number in range(30):
        reason = {f"base__seed{seed}": f"Error {'abcdefghijklmnopqrstuvwxyzABCD'[number]}: broken" for seed in (42, 43)}
        verdict = ("supported", "inconclusive", "promising_unconfirmed")[number % 3]
        claim = {"hypothesis": f"Claim {number} " + "word " * 20}
        write_experiment(tmp_path, f"n{number:02d}", verdict=verdict, failed=reason, metadata=claim)
    shown = digest(tmp_path, style, budget_tokens=budget)
    assert len(shown) <= 4 * budget
    if style == "json":
        left = json.loads(shown)["left_out"]
        assert left["open_questions"]["count"] > 0
        assert left["open_questions"]["command"].startswith("evsys history --verdict")
    else:
        assert " more: " in shown
        assert "evsys history" in shown
        assert "Best so far" in shown


def test_the_same_record_gives_the_same_digest(root: Path) -> None:
    first = digest(root)
    (root / ".history.sqlite3").unlink()
    assert digest(root) == first


def test_no_experiments_make_an_empty_digest(tmp_path: Path) -> None:
    assert digest(tmp_path).strip() == ""
    assert data(tmp_path)["best"] == []


def test_numbers_drawn_at_random_are_rounded_before_they_are_counted(tmp_path: Path) -> None:
    for number in range(14):
        write_experiment(tmp_path, f"n{number:02d}", params={"rate": 0.001 * (1 + number / 100)}, seeds=(1,))
    (tried,) = data(tmp_path)["tried"]
    assert tried["params"]["rate"]["~1e-03"]["experiments"] == 14


def test_reasons_differ_by_their_words_not_by_their_numbers_and_paths() -> None:
    told = [
        ("a", "OSError: [Errno 28] no space in /data/run-1"),
        ("b", "OSError: [Errno 28] no space in /other/run-2"),
        ("c", "KeyError: 'x'"),
        ("d", "KeyError: 'yy'\nwith a traceback"),
        ("e", "ValueError: bad"),
    ]
    assert [(group.count, group.experiment) for group in grouped_reasons(told)] == [(2, "c"), (2, "a"), (1, "e")]


def test_sections_give_way_by_their_share_and_the_rest_is_named() -> None:
    long = [Item("x" * 40, number) for number in range(10)]
    sections = [
        Section("big", "Big", long, 0.6, "see big"),
        Section("small", "Small", long, 0.2, "see small", total=100),
    ]
    shown = Digest(sections, 120).fit("text")
    assert len(shown) <= 480
    big, small = (part.count("x" * 40) for part in shown.split("Small"))
    assert big > small
    assert f"{100 - small} more: see small" in shown


def test_sections_without_room_are_named_in_one_line() -> None:
    sections = [
        Section("best", "Best", [Item("x" * 100, 1)], 0.9, "see best"),
        Section("rest", "Rest", [Item("y" * 300, 2)], 0.0, "see rest"),
    ]
    shown = Digest(sections, 75).fit("text")
    assert "x" * 100 in shown
    assert "No room for: rest (1). Raise --budget-tokens" in shown
