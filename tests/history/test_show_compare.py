"""One experiment in full, and several against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import DataError
from evsys_sdk.history.detail import read_detail
from evsys_sdk.history.pairs import PairedDifference, compare_sides
from evsys_sdk.history.views.compare import compare_experiments, compare_page, config_differences
from evsys_sdk.history.views.show import show_data, show_page

from .recorded import write_experiment, write_scores


def change_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text("utf-8"))
    (path / "config.json").write_text(json.dumps(config | changes), "utf-8")


def test_show_tells_verdict_runs_failures_and_how_to_go_on(tmp_path: Path) -> None:
    note = {"id": "1", "time": 1.0, "kind": "note", "text": "Odd.", "author": "agent"}
    path = write_experiment(
        tmp_path, "rates", status="failed", failed={"base__seed42": "OSError: disk full"}, events=[note]
    )
    page = show_page(read_detail(path))
    assert "The verdict on rates is inconclusive." in page
    assert "The change of rates helps." in page
    assert "+0.2 [-0.1, +0.5]" in page
    assert "base__seed42: OSError: disk full" in page
    assert "agent: Odd." in page
    assert "final_sampler: somewhere" in page
    assert "evsys run rates/config.json --resume" in page
    assert "evsys run rates/config.json --fresh" in page
    assert "Add seeds to rates." in page


@pytest.mark.parametrize("width", [60, 80, 140])
def test_pages_keep_to_the_width_where_they_can(tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    path = write_experiment(tmp_path, "rates", metadata={"hypothesis": "word " * 60})
    other = write_experiment(tmp_path, "other", params={"learning_rate": 0.5})
    pages = [show_page(read_detail(path)), compare_page(compare_experiments([read_detail(path), read_detail(other)]))]
    for page in pages:
        assert max(len(line) for line in page.splitlines()) <= max(width, 78)


def test_show_tells_what_search_budget_and_retries_decided(tmp_path: Path) -> None:
    events = [
        {"id": "1", "time": 1.0, "kind": "arm_retried", "arm": "base__seed42", "attempt": 1, "reason": "lost worker"},
        {"id": "2", "time": 2.0, "kind": "search_decision", "kept": ["base"], "rung": 1},
        {"id": "3", "time": 3.0, "kind": "budget_stop", "limit": {"usd": 1}, "spent": {"usd": 1.1}},
    ]
    page = show_page(read_detail(write_experiment(tmp_path, "rates", events=events)))
    assert "- base__seed42 was resumed: lost worker" in page
    assert "- search rung 1: went on: base" in page
    assert '- stopped by the budget: limit {"usd": 1}, spent {"usd": 1.1}' in page


def test_show_json_has_everything_and_no_secrets(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "rates", params={"api_key": "abc123"})
    found = show_data(read_detail(path))
    text = json.dumps(found)
    assert "abc123" not in text
    assert found["config"]["runs"][0]["algorithm"]["params"]["api_key"] == "[redacted]"
    assert [(run["run"], run["score"], run["is_baseline"]) for run in found["runs"]] == [
        ("base", 0.4, True),
        ("changed", 0.6, False),
    ]
    assert len(found["arms"]) == 4
    assert found["best_arm"] == "changed__seed43"


def test_show_of_an_experiment_without_a_conclusion_says_so(tmp_path: Path) -> None:
    page = show_page(read_detail(write_experiment(tmp_path, "rates", verdict=None)))
    assert "No conclusion was written" in page


def test_show_of_a_damaged_experiment_shows_what_is_left(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "rates")
    (path / "config.json").write_bytes(b"{")
    page = show_page(read_detail(path))
    assert "rates-0a1b2c3d: damaged" in page
    assert "--fresh" not in page


def test_show_of_an_empty_experiment_works(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "rates", runs={"only": 0.0}, status=None, verdict=None)
    assert "rates-0a1b2c3d: running" in show_page(read_detail(path))


def test_a_folder_that_is_no_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the record of an experiment"):
        read_detail(tmp_path)


def compare_pairs(first: Path, second: Path) -> list[PairedDifference]:
    return compare_sides(read_detail(first).side, read_detail(second).side)


def test_any_run_is_compared_with_any_other_and_the_conclusions_interval_is_the_only_one(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"base": 0.4, "changed": 0.6})
    two = write_experiment(tmp_path, "two", runs={"other": 0.8})
    base, changed = (read_detail(one, run=run) for run in ("base", "changed"))
    (own,) = compare_sides(base.side, changed.side)
    concluded = changed.view.run("changed")
    assert concluded is not None
    assert concluded.difference is not None
    assert (own.difference, own.low, own.high) == (
        concluded.difference.value,
        concluded.difference.low,
        concluded.difference.high,
    )
    assert own.population.startswith("as concluded")
    (turned,) = compare_sides(changed.side, base.side)
    assert (turned.difference, turned.low) == (-own.difference, -(own.high or 0.0))
    (across,) = compare_sides(base.side, read_detail(two).side)
    assert (across.n_tasks, across.population) == (20, "20 common tasks, 2 and 2 seeds, this pair alone")
    page = compare_page(compare_experiments([base, changed, read_detail(two)]))
    assert page.index("C minus A") < page.index("What differs in the config")
    assert "Interval: as concluded: all runs of one-0a1b2c3d, simultaneous." in page
    assert "Interval: 20 common tasks, 2 and 2 seeds, this pair alone." in page
    with pytest.raises(DataError, match="has no run 'chagned'"):
        read_detail(one, run="chagned")


def test_only_what_differs_between_configs_is_told(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one")
    two = write_experiment(tmp_path, "two", params={"learning_rate": 0.5, "api_key": "abc123"}, description="New.")
    found = dict(config_differences([read_detail(one), read_detail(two)]))
    assert found["run.algorithm.params.learning_rate"] == [0.1, 0.5]
    assert found["run.algorithm.params.api_key"] == ["(not set)", "[redacted]"]
    assert found["description"] == ["(not set)", "New."]
    assert not [path for path in found if "model" in path or "seed" in path or path == "name"]


def test_runs_without_a_common_name_are_compared_by_the_best_of_each(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"a": 0.1, "b": 0.2})
    two = write_experiment(tmp_path, "two", runs={"c": 0.3}, params={"rank": 4})
    found = dict(config_differences([read_detail(one), read_detail(two)]))
    assert found["run.algorithm.params.rank"] == ["(not set)", 4]


def test_scores_are_paired_by_task_with_an_interval_over_tasks_and_seeds(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"only": 0.4})
    two = write_experiment(tmp_path, "two", runs={"only": 0.8})
    (pair,) = compare_pairs(one, two)
    assert pair.metric == "val/bench/pass@1"
    assert (pair.first, pair.second) == pytest.approx((0.4, 0.8))
    assert (pair.n_tasks, pair.n_seeds, pair.remark) == (20, (2, 2), "")
    assert pair.low is not None
    assert pair.high is not None
    assert 0 < pair.low < pair.difference < pair.high
    assert pair.is_clear


def test_pairing_uses_only_common_tasks_whatever_their_order(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"only": 0.4}, seeds=(42,))
    two = write_experiment(tmp_path, "two", runs={"only": 0.4}, seeds=(42,))
    scores = two / "only" / "scores.jsonl"
    lines = [json.loads(line) for line in scores.read_text("utf-8").splitlines()]
    for line in lines:
        value = line["metrics"]["pass@1"]
        line["tasks"], value["per_task"] = line["tasks"][::-1][:15], value["per_task"][::-1][:15]
        line["sha256"] = "e" * 64
    scores.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (pair,) = compare_pairs(one, two)
    assert (pair.n_tasks, pair.difference) == (15, 0.0)
    assert "only 15 common tasks of 20" in pair.remark
    assert "the task sets differ" in pair.remark
    assert "one seed each" in pair.remark


def test_the_last_scoring_counts(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"only": 0.4}, seeds=(42,))
    two = write_experiment(tmp_path, "two", runs={"only": 0.4}, seeds=(42,))
    write_scores(two / "only", 10, 1.0, "val/bench/pass@1")
    (pair,) = compare_pairs(one, two)
    assert pair.second == 1.0


def test_without_scores_by_task_the_difference_is_not_paired(tmp_path: Path) -> None:
    paths = [write_experiment(tmp_path, name, runs={"only": 0.4}, seeds=(42,)) for name in ("one", "two")]
    for path in paths:
        (path / "only" / "scores.jsonl").unlink()
    (pair,) = compare_pairs(*paths)
    assert (pair.n_tasks, pair.difference) == (None, 0.0)
    assert (pair.low, pair.high, pair.covers) == (None, None, "")  # one seed says nothing about another one
    assert "not paired" in pair.remark


def test_without_scores_by_task_several_seeds_give_an_interval_over_seeds(tmp_path: Path) -> None:
    paths = [write_experiment(tmp_path, name, runs={"only": 0.4}, seeds=(42, 43, 44)) for name in ("one", "two")]
    for scores in tmp_path.glob("*/*/scores.jsonl"):
        scores.unlink()
    (pair,) = compare_pairs(*paths)
    assert (pair.n_tasks, pair.covers) == (None, "seeds")
    assert pair.low is not None
    assert pair.high is not None
    # Each has seeds at 0.40, 0.41, 0.40: by Student's t with four degrees of freedom.
    assert pair.high - pair.difference == pytest.approx(2.776 * (2 * (0.01**2 / 3) / 3) ** 0.5, rel=1e-3)


def test_one_seed_each_gives_an_interval_over_tasks_that_says_so_and_is_never_called_clear(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"only": 0.1}, seeds=(42,))
    two = write_experiment(tmp_path, "two", runs={"only": 0.9}, seeds=(42,))
    comparison = compare_experiments([read_detail(one), read_detail(two)])
    ((pair,),) = comparison.pairs
    assert pair.low is not None
    assert pair.low > 0
    assert (pair.covers, pair.is_clear) == ("tasks", False)
    assert "(tasks only)" in compare_page(comparison)


def test_the_interval_of_a_run_whose_experiment_repeats_no_seed_is_labelled(tmp_path: Path) -> None:
    single = show_page(read_detail(write_experiment(tmp_path, "single", seeds=(42,))))
    repeated = show_page(read_detail(write_experiment(tmp_path, "repeated", seeds=(42, 43))))
    assert "[0.5, 0.7] (tasks only)" in single
    assert "[0.5, 0.7]" in repeated
    assert "tasks only" not in repeated


def test_a_score_without_a_conclusion_has_no_interval(tmp_path: Path) -> None:
    detail = read_detail(write_experiment(tmp_path, "plain", verdict=None, seeds=(42,)))
    assert [(run.score is None, run.low, run.high) for run in detail.view.runs] == [(False, None, None)] * 2


def test_damaged_scores_are_no_reason_to_fail(tmp_path: Path) -> None:
    paths = [write_experiment(tmp_path, name, runs={"only": 0.4}, seeds=(42,)) for name in ("one", "two")]
    (paths[0] / "only" / "scores.jsonl").write_text('{"split": 3, "metrics": {"pass@1": 7}}\n{"tasks"\nnull\n', "utf-8")
    (pair,) = compare_pairs(*paths)
    assert pair.n_tasks is None


def test_a_comparison_tells_config_scores_and_curves(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", runs={"only": 0.4})
    two = write_experiment(tmp_path, "two", runs={"only": 0.8}, params={"rank": 4})
    comparison = compare_experiments([read_detail(one), read_detail(two)])
    page = compare_page(comparison)
    assert "run.algorithm.params.rank" in page
    assert "+0.4 *" in page
    assert "loss" in page
    assert "one-0a1b2c3d" in page
    found = comparison.to_dict()
    assert [(one["experiment"], one["against"]) for one in found["differences"]] == [("two-0a1b2c3d", "one-0a1b2c3d")]
    assert {curve["metric"] for curve in found["curves"]} == {"loss", "val/bench/pass@1"}


def test_experiments_without_anything_in_common_say_so(tmp_path: Path) -> None:
    one = write_experiment(tmp_path, "one", metric="pass@1")
    two = write_experiment(tmp_path, "two", metric="cost")
    assert "no scored metric in common" in compare_page(compare_experiments([read_detail(one), read_detail(two)]))


def write_interrupted(root: Path) -> Path:
    """A search that was interrupted: `base` ended, `one` and `two` were stopped after their scorings."""
    path = write_experiment(root, "search", runs={"base": 0.4}, seeds=(42,), verdict=None, status="interrupted")
    config = json.loads((path / "config.json").read_text("utf-8"))
    config["runs"] += [{**config["runs"][0], "name": name} for name in ("one", "two")]
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    with (path / "journal.jsonl").open("a", encoding="utf-8") as journal:
        for name, score in (("one", 0.5), ("two", 0.7)):
            (path / name).mkdir()
            write_scores(path / name, 4, score, "val/bench/pass@1")
            (path / name / "starts.jsonl").write_text('{"time": 1.0}\n', "utf-8")
            result = {"run_id": name, "status": "cancelled", "metrics": {"steps": 4.0}, "artifacts": {}}
            (path / name / "run_result.json").write_text(json.dumps(result), "utf-8")
            ended = {"id": name, "time": 2.0, "kind": "arm_ended", "arm": name, "status": "cancelled"}
            journal.write(json.dumps({**ended, "metrics": {}}) + "\n")
    return path


def test_interrupted_arms_count_with_the_scores_they_have(tmp_path: Path) -> None:
    detail = read_detail(write_interrupted(tmp_path))
    assert (detail.view.best_run, detail.view.best_score, detail.view.best_step) == ("two", 0.7, 4)
    assert detail.best_arm is not None
    assert detail.best_arm.name == "two"
    page = show_page(detail)
    assert "* two" in page
    assert "0.7 (step 4)" in page
    assert "- one: cancelled, 0.5 at step 4" in page
    arms = {one["arm"]: (one["score"], one["score_step"]) for one in show_data(detail)["arms"]}
    assert arms == {"base": (0.4, None), "one": (0.5, 4), "two": (0.7, 4)}


def test_the_best_of_a_conclusion_gives_way_to_a_better_score_that_it_does_not_know(tmp_path: Path) -> None:
    path = write_interrupted(tmp_path)
    rows = [{"name": name, "mean": 0.4 if name == "base" else None, "n_seeds": 1} for name in ("base", "one", "two")]
    said = {"verdict": "inconclusive", "metric": "val/bench/pass@1", "mode": "max", "best_arm": "base", "runs": rows}
    (path / "conclusion.json").write_text(json.dumps(said), "utf-8")
    assert read_detail(path).view.best_run == "two"


def test_without_a_benchmark_the_recipe_ranks_by_its_own_measure(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "reward", runs={"base": 0.4, "changed": 0.6}, seeds=(42,), algorithm="rl")
    for name, reward in (("base", 0.9), ("changed", 0.3)):
        result = json.loads((path / name / "run_result.json").read_text("utf-8"))
        result["metrics"] = {"final_loss": reward, "reward/mean": reward}
        result["extras"] |= {"selection_metric": "reward/mean", "selection_mode": "max"}
        (path / name / "run_result.json").write_text(json.dumps(result), "utf-8")
        (path / name / "scores.jsonl").unlink()
    change_config(path, metadata={"hypothesis": "It learns."})
    (path / "journal.jsonl").unlink()
    said = {"verdict": "inconclusive", "metric": "final_loss", "mode": "min", "best_arm": "changed", "best_score": 0.3}
    (path / "conclusion.json").write_text(json.dumps(said), "utf-8")
    summary = read_detail(path).view
    assert (summary.metric, summary.mode, summary.best_run, summary.best_score) == ("reward/mean", "max", "base", 0.9)


def test_a_search_says_who_went_on_and_who_stopped_with_their_scores(tmp_path: Path) -> None:
    scores = {f"arm{number}": number / 100 for number in range(12)}
    kept, stopped = ["arm11", "arm10"], [f"arm{number}" for number in range(10)]
    rung = {"rung": 1, "of": 2, "step": 4, "metric": "val/pass@1", "scores": scores, "kept": kept, "stopped": stopped}
    race = {"race": 2, "metric": "val/pass@1", "added": ["a__seed44"], "why": "2 runs are not told apart"}
    events = [{"id": str(n), "time": 1.0, "kind": "search_decision", **one} for n, one in enumerate((rung, race))]
    page = " ".join(show_page(read_detail(write_experiment(tmp_path, "search", events=events))).split())
    assert "search rung 1 after step 4 by val/pass@1: went on: arm11 0.11, arm10 0.1; stopped: arm0 0," in page
    assert "arm7 0.07 and 2 more" in page
    assert "search race 2 by val/pass@1: 2 runs are not told apart; added: a__seed44" in page
    assert "{" not in page.partition("Decisions")[2].partition("Next")[0]
