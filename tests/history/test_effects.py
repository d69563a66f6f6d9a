"""What a change did: which runs are compared, by what interval, and what several experiments say together."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.experiment.statistics.student_t import t_quantile
from evsys_sdk.history.context.questions import Combination, QuestionDigest, clear_winners, find_untried
from evsys_sdk.history.effects import Contrast, Effect, contrasts_of, find_changed_axis
from evsys_sdk.record.flat_config import settings_of
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.record.view.build import view

from .recorded import write_experiment, write_scores


def run(
    name: str = "r", model: str = "tiny", kind: str = "sft", path: str = "a.jsonl", **params: Any
) -> dict[str, Any]:
    recipe = {"kind": kind, "params": params}
    return {"name": name, "seed": 1, "model": {"name": model}, "algorithm": recipe, "data": {"path": path}}


def axis(first: dict[str, Any], second: dict[str, Any]) -> str | None:
    found = find_changed_axis(settings_of(first), settings_of(second))
    return found[0] if found else None


def test_two_runs_have_an_effect_if_one_setting_differs_and_the_model_does_not() -> None:
    assert axis(run(rate=0.1), run("other", rate=0.2)) == "rate"
    assert axis(run(rate=0.1), run()) == "rate"
    assert axis(run(path="a.jsonl"), run(path="b.jsonl")) == "data"
    assert axis(run(kind="sft", rate=0.1), run(kind="rl", group=4)) == "algorithm"
    assert axis(run(rate=0.1), run(rate=0.1)) is None
    assert axis(run(rate=0.1, rank=8), run(rate=0.2, rank=16)) is None
    assert axis(run(model="tiny"), run(model="large")) is None
    assert axis(run(kind="sft", path="a.jsonl"), run(kind="rl", path="b.jsonl")) is None


def contrasts(path: Path) -> list[Contrast]:
    record = ExperimentRecord.open(path)
    return contrasts_of(record, view(record))


def set_params(path: Path, params: dict[str, dict[str, Any]]) -> None:
    config = json.loads((path / "config.json").read_text("utf-8"))
    for one in config["runs"]:
        one["algorithm"]["params"] = params[one["name"]]
    (path / "config.json").write_text(json.dumps(config), "utf-8")


def test_the_interval_is_that_of_the_conclusion_where_it_compared_the_two(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "rates")
    set_params(path, {"base": {"rate": 0.2}, "changed": {"rate": 0.1}})
    (found,) = contrasts(path)
    # The smaller value first, so that the same change has the same name wherever it was made.
    assert (found.axis, found.before, found.after) == ("rate", "0.1", "0.2")
    assert (found.difference, found.low, found.high, found.seeds) == (-0.2, -0.5, 0.1, 2)


def test_without_a_conclusion_it_is_made_from_the_scores_on_record(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "rates", verdict=None)
    set_params(path, {"base": {"rate": 0.1}, "changed": {"rate": 0.2}})
    (found,) = contrasts(path)
    assert found.difference == pytest.approx(0.2)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.2 < found.high


def test_in_a_grid_each_setting_is_compared_where_the_others_are_the_same(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "grid", verdict=None, runs={"a": 0.2, "b": 0.4, "c": 0.5, "d": 0.9})
    grid = {"a": (1, 1), "b": (1, 2), "c": (2, 1), "d": (2, 2)}
    set_params(path, {name: {"x": x, "y": y} for name, (x, y) in grid.items()})
    found = [(one.axis, one.run, round(one.difference, 6)) for one in contrasts(path)]
    assert sorted(found) == [("x", "a", 0.3), ("x", "b", 0.5), ("y", "a", 0.2), ("y", "c", 0.4)]


@pytest.mark.parametrize(("steps", "compared"), [((4,), False), ((5,), True)])
def test_a_run_that_was_stopped_is_compared_after_the_same_step_or_not_at_all(
    tmp_path: Path, steps: Sequence[int], compared: bool
) -> None:
    path = write_experiment(tmp_path, "stopped", verdict=None, seeds=(42,), status="interrupted")
    set_params(path, {"base": {"rate": 0.1}, "changed": {"rate": 0.2}})
    (path / "changed" / "scores.jsonl").unlink()
    (path / "changed" / "run_result.json").unlink()
    lines = [json.loads(line) for line in (path / "journal.jsonl").read_text("utf-8").splitlines()]
    kept = [line for line in lines if not (line["kind"] == "arm_ended" and line["arm"] == "changed")]
    (path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    for step in steps:
        write_scores(path / "changed", step, 0.5, "val/bench/pass@1")
    # The other was scored after 5 and 10 steps: 0.2 and 0.4.
    assert [round(one.difference, 6) for one in contrasts(path)] == ([0.3] if compared else [])


def effect(*contrasts: tuple[float, float, float], axis: str = "rate", before: str = "1", after: str = "2") -> Effect:
    """The same change in several experiments, as (difference, standard error, degrees of freedom)."""
    found = Effect(axis, before, after, "sft", seeds=3)
    for difference, stderr, df in contrasts:
        half = t_quantile(0.975, df) * stderr
        found.n, found.n_weighed, found.df = found.n + 1, found.n_weighed + 1, found.df + df
        found.total += difference
        found.weight += stderr**-2
        found.weighted += difference / stderr**2
        found.squares += difference**2 / stderr**2
        found.low, found.high = difference - half, difference + half
        found.n_up, found.n_down = found.n_up + (found.low > 0), found.n_down + (found.high < 0)
    return found


def test_one_experiment_has_its_own_interval() -> None:
    found = effect((0.2, 0.05, 8))
    assert found.interval == pytest.approx((0.2 - 2.306 * 0.05, 0.2 + 2.306 * 0.05), abs=1e-4)
    assert found.is_clear


def test_experiments_that_agree_make_each_other_surer() -> None:
    found = effect((0.2, 0.1, 8), (0.2, 0.1, 8))
    assert found.difference == pytest.approx(0.2)
    assert found.interval == pytest.approx((0.2 - 2.12 * 0.1 / math.sqrt(2), 0.2 + 2.12 * 0.1 / math.sqrt(2)), abs=1e-3)
    surer = effect((0.0, 0.2, 8), (0.3, 0.1, 8))
    assert surer.difference == pytest.approx(0.24)  # four times the weight


def test_experiments_that_disagree_widen_the_interval_and_say_so() -> None:
    found = effect((0.3, 0.02, 50), (-0.3, 0.02, 50))
    interval = found.interval
    assert interval is not None
    assert interval[0] < -0.3
    assert interval[1] > 0.3
    assert found.disagrees
    assert not found.is_clear


def test_one_seed_is_never_clear() -> None:
    found = effect((0.3, 0.02, 50))
    found.seeds = 1
    assert not found.is_clear


def question(
    model: str, effects: Sequence[Effect], combinations: Sequence[dict[str, str]], number: int = 1
) -> QuestionDigest:
    tried = [Combination("sft", params, 1, 2, 0.5, 20.0) for params in combinations]
    return QuestionDigest(model, "mock", "val/bench/pass@1", "max", "20 tasks", number, 3, tried, list(effects))


def test_what_won_alone_and_was_never_combined_is_untried() -> None:
    rate, rank = effect((0.2, 0.02, 20)), effect((0.1, 0.02, 20), axis="rank", before="8", after="16")
    tried = [{"rate": "1", "rank": "8"}, {"rate": "2", "rank": "8"}, {"rate": "1", "rank": "16"}]
    one = question("tiny", [rate, rank], tried)
    assert clear_winners(one, "sft") == {"rate": "2", "rank": "16"}
    first, *further = find_untried([one])
    assert (first.what, first.usd, first.wall_s) == ("rank=16 with rate=2", 0.25, 10.0)
    assert {found.what for found in further} == {"rate=4", "rank=32"}  # beyond the last that was tried
    combined = question("tiny", [rate, rank], [*tried, {"rate": "2", "rank": "16"}])
    assert not any("with" in found.what for found in find_untried([combined]))


def test_what_helped_one_model_is_untried_on_another() -> None:
    helped = question("tiny", [effect((0.2, 0.02, 20))], [{"rate": "1"}, {"rate": "2"}])
    other = question("large", [], [{"rate": "1"}], number=2)
    found = {(one.question.model, one.what, one.why) for one in find_untried([helped, other])}
    assert ("large", "rate=2", "it helped tiny") in found


def test_where_less_is_better_the_smaller_score_wins() -> None:
    one = question("tiny", [effect((0.2, 0.02, 20))], [{"rate": "1"}, {"rate": "2"}])
    one.mode = "min"
    assert clear_winners(one, "sft") == {"rate": "1"}
