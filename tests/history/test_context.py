"""The digest holds what matters most, fits its budget, and is the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.history.context.digest import Digest, Item, Section, count_tokens
from evsys_sdk.history.context.questions import group_reasons
from evsys_sdk.history.context.sections import make_digest
from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.query import Filters

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


def question(found: dict[str, Any], metric: str = "val/bench/pass@1") -> dict[str, Any]:
    return next(one for one in found["questions"] if one["metric"] == metric)


def test_the_best_is_the_best_that_counts_with_how_sure_it_is_and_where_to_start(root: Path) -> None:
    best = question(data(root))["best"]
    assert [(one["id"], one["score"], one["verdict"]) for one in best] == [("winner-0a1b2c3d", 0.8, "supported")]
    line = next(line for line in digest(root).splitlines() if line.startswith("- best"))
    assert line.startswith(
        "- best 0.8 [0.7, 0.9] (2 seeds, supported): sft learning_rate=0.1 rank=8; run changed of winner"
    )
    assert "evsys run winner/config.json --fresh" in line


def test_a_best_that_is_not_sure_is_shown_beside_the_best_that_is(root: Path) -> None:
    write_experiment(root, "lucky", verdict="inconclusive", runs={"base": 0.4, "changed": 0.95})
    assert [one["id"] for one in question(data(root))["best"]] == ["lucky-0a1b2c3d", "winner-0a1b2c3d"]


def test_a_best_of_one_seed_is_shown_beside_the_best_of_several(root: Path) -> None:
    write_experiment(root, "once", verdict="inconclusive", runs={"base": 0.4, "changed": 0.95}, seeds=(42,))
    best = question(data(root))["best"]
    assert [(one["id"], one["seeds"]) for one in best] == [("once-0a1b2c3d", 1), ("winner-0a1b2c3d", 2)]
    assert {"ids": ["once-0a1b2c3d"], "count": 1, "reason": "one seed"} in data(root)["distrusted"]


def test_less_can_be_better(tmp_path: Path) -> None:
    write_experiment(tmp_path, "low", mode="min", runs={"base": 0.4, "changed": 0.1}, metric="cost")
    write_experiment(tmp_path, "high", mode="min", runs={"base": 0.4, "changed": 0.3}, metric="cost")
    found = question(data(tmp_path), "val/bench/cost")
    assert (found["best"][0]["id"], found["mode"]) == ("low-0a1b2c3d", "min")
    assert ", less is better: experiments 2, runs sft 4" in digest(tmp_path)


def test_an_experiment_that_has_several_attempts_is_called_by_its_id(root: Path) -> None:
    write_experiment(root, "winner", folder="winner.2", verdict="supported", started=BEGAN + 9)
    assert "run changed of winner-0a1b2c3d" in digest(root)


def test_models_metrics_and_task_sets_are_different_questions(tmp_path: Path) -> None:
    write_experiment(tmp_path, "one", metric="pass@1")
    write_experiment(tmp_path, "two", metric="reward")
    other = write_experiment(tmp_path, "three")
    config = json.loads((other / "config.json").read_text("utf-8"))
    for run in config["runs"]:
        run["model"]["name"] = "large"
    (other / "config.json").write_text(json.dumps(config), "utf-8")
    conclusion = json.loads((write_experiment(tmp_path, "four") / "conclusion.json").read_text("utf-8"))
    (tmp_path / "four" / "conclusion.json").write_text(json.dumps(conclusion | {"report_sha256": "e" * 64}), "utf-8")
    found = {(one["model"], one["metric"], one["tasks"]): one["experiments"] for one in data(tmp_path)["questions"]}
    assert found == {
        ("tiny", "val/bench/pass@1", "20 tasks ffffff"): 1,
        ("tiny", "val/bench/pass@1", "20 tasks eeeeee"): 1,
        ("tiny", "val/bench/reward", "20 tasks ffffff"): 1,
        ("large", "val/bench/pass@1", "20 tasks ffffff"): 1,
    }


def test_open_claims_are_the_promising_first_with_what_to_do_next(root: Path) -> None:
    found = data(root)["open"]
    assert [(one["verdicts"][0]["latest"], one["next"]) for one in found] == [
        ("hopeful-0a1b2c3d", "Add seeds to hopeful."),
        ("broken-0a1b2c3d", "Add seeds to broken."),
    ]


def test_the_same_claim_is_told_once_however_it_ended(tmp_path: Path) -> None:
    for number, verdict in enumerate(("supported", "supported", "refuted", "inconclusive")):
        said = {"hypothesis": {"claim": "Longer is  better." if number else "Longer is better"}}
        write_experiment(tmp_path, f"n{number}", verdict=verdict, metadata=said, started=BEGAN + number)
    found = data(tmp_path)
    assert (found["settled"], found["open"]) == ([], [])
    (claim,) = found["contradicted"]
    assert {one["verdict"]: one["experiments"] for one in claim["verdicts"]} == {
        "supported": 2,
        "refuted": 1,
        "inconclusive": 1,
    }
    assert "Longer is better: supported by n1 and 1 more, refuted by n2, inconclusive by n3" in digest(tmp_path)


def test_reasons_are_counted_once(root: Path) -> None:
    (failed,) = data(root)["failed"]
    assert (failed["count"], failed["last_in"]) == (2, "crashed-0a1b2c3d")


def test_unfinished_invalidated_notes_and_spend_are_there(root: Path) -> None:
    found = data(root)
    assert [one["id"] for one in found["unfinished"]] == ["stopped-0a1b2c3d"]
    assert found["distrusted"] == [{"id": "leaked-0a1b2c3d", "reason": "The test set leaked."}]
    assert found["notes"] == [{"id": "broken-0a1b2c3d", "text": "Ask for more data."}]
    assert found["spend"][0]["experiments"] == 6
    assert found["spend"][0]["usd"] == pytest.approx(5.0)


def test_the_goal_is_what_was_said_or_what_tags_and_hypotheses_say(root: Path) -> None:
    assert data(root, goal="Route well.")["goal"] == [{"goal": "Route well."}]
    assert data(root)["goal"][0] == {"tags": {"routing": 6}}


def test_filters_narrow_it(root: Path) -> None:
    found = data(root, filters=Filters(algorithm="rl"))
    assert found["spend"][0]["experiments"] == 1
    assert question(found)["best"][0]["id"] == "broken-0a1b2c3d"


@pytest.mark.parametrize("style", ["text", "markdown", "json"])
@pytest.mark.parametrize("budget", [200, 400, 800, 1500])
def test_it_fits_its_budget_and_says_what_was_left_out(tmp_path: Path, style: str, budget: int) -> None:
    for number in range(30):
        reason = {f"base__seed{seed}": f"Error {'abcdefghijklmnopqrstuvwxyzABCD'[number]}: broken" for seed in (42, 43)}
        verdict = ("supported", "inconclusive", "promising_unconfirmed")[number % 3]
        claim = {"hypothesis": f"Claim {number} " + "word " * 20}
        write_experiment(tmp_path, f"n{number:02d}", verdict=verdict, failed=reason, metadata=claim)
    shown = digest(tmp_path, style, budget_tokens=budget)
    assert count_tokens(shown) <= budget
    if style == "json":
        assert json.loads(shown)["left_out"]["open"] > 0
    else:
        assert " more" in shown or "Left out: " in shown
        assert "evsys history" in shown
        assert "best 0.6 [0.5, 0.7]" in shown or budget < 400


def test_the_same_record_gives_the_same_digest(root: Path) -> None:
    first = digest(root)
    (root / ".history.sqlite3").unlink()
    assert digest(root) == first


def test_no_experiments_make_an_empty_digest(tmp_path: Path) -> None:
    assert digest(tmp_path).strip() == ""
    assert data(tmp_path)["questions"] == []


def test_reasons_differ_by_their_words_not_by_their_numbers_and_paths() -> None:
    told = [
        ("a", "OSError: [Errno 28] no space in /data/run-1"),
        ("b", "OSError: [Errno 28] no space in /other/run-2"),
        ("c", "KeyError: 'x'"),
        ("d", "KeyError: 'yy'\nwith a traceback"),
        ("e", "ValueError: bad"),
    ]
    assert [(group.count, group.experiment) for group in group_reasons(told)] == [(2, "c"), (2, "a"), (1, "e")]


def test_sections_give_way_by_their_share_and_say_what_is_left_out() -> None:
    long = [Item("x" * 40, number) for number in range(10)]
    sections = [
        Section("big", "Big", long, 0.6, "see big"),
        Section("small", "Small", long, 0.2, "see small", total=100),
    ]
    shown = Digest(sections, 200).fit("text")
    assert count_tokens(shown) <= 200
    big, small = (part.count("x" * 40) for part in shown.split("Small"))
    assert big > small
    assert f"{100 - small} more: see small" in shown


def test_room_that_a_long_item_leaves_is_used_by_short_ones() -> None:
    sections = [
        Section("one", "One", [Item("a b c", 1), Item("word " * 50, 2)], 0.9, "see one"),
        Section("two", "Two", [Item("d e f", 3), Item("g h i", 4)], 0.0, "see two"),
    ]
    shown = Digest(sections, 40).fit("text")
    assert "1 more: see one" in shown
    assert "d e f\n- g h i" in shown


def test_the_first_statement_of_each_section_outlasts_the_second_of_others_and_the_last_section_goes_first() -> None:
    sections = [Section(f"s{n}", f"S{n}", [Item("word " * 10, 1), Item("word " * 10, 2)], 0.3, "see") for n in range(4)]
    assert [Digest(sections, budget).fit("text").count("word " * 9) for budget in (120, 95, 75)] == [8, 4, 2]
    assert "Left out: s1 (2), s2 (2), s3 (2). Raise --budget-tokens" in Digest(sections, 75).fit("text")


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("a cat", 2), ("0.125", 5), ("pass@1\n", 4), ("été", 5), ("hypotheses", 4)]
)
def test_tokens_are_counted_so_that_no_tokenizer_needs_more(text: str, count: int) -> None:
    assert count_tokens(text) == count
