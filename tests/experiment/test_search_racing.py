"""Seeds are added to the leaders until their order is clear, does not matter, or the seeds are used up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evsys_sdk import RunConfig, RunResult
from evsys_sdk.experiment.arms.arm import Arm
from evsys_sdk.experiment.arms.results import ArmResult
from evsys_sdk.experiment.search.allocation import AllocationDecision, ArmOutcome, ArmRequest, EveryArm
from evsys_sdk.experiment.search.objective import Objective
from evsys_sdk.experiment.search.racing import Racing, RacingRules, gaps_behind
from evsys_sdk.protocols import RunNotes

type Scores = Callable[[str, int], Mapping[str, float]]


def seeded(run: str, repeat: int) -> Arm:
    config = {"name": f"{run}-{repeat}", "data": {"path": "x"}, "model": {"name": "m"}, "algorithm": {"kind": "sft"}}
    return Arm(RunConfig.model_validate(config), repeat, run)


def racing(runs: list[str], scores: Scores, rules: RacingRules, mode: Any = "max") -> Racing:
    return Racing(
        EveryArm([seeded(run, repeat) for run in runs for repeat in range(rules.first_seeds)]),
        rules,
        Objective("pass@1", "v", mode),
        seeded=seeded,
        scores=lambda arm: scores(arm.of_run, arm.repeat),
    )


def finished(request: ArmRequest, status: Any = "completed") -> ArmOutcome:
    return ArmOutcome(request, ArmResult(request.arm, RunResult(request.arm.name, status)))


def play(search: Racing, fails: Callable[[Arm], bool] = lambda arm: False) -> tuple[AllocationDecision, dict[str, int]]:
    """Train whatever is asked for; returns the last decision, and how many seeds each run got."""
    outcomes: list[ArmOutcome] = []
    while True:
        decision = search.decide(outcomes)
        done = {one.request.key for one in outcomes}
        new = [request for request in decision.requests if request.key not in done]
        if not new:
            seeds: dict[str, int] = {}
            for one in outcomes:
                seeds[one.request.arm.of_run] = seeds.get(one.request.arm.of_run, 0) + 1
            return decision, seeds
        outcomes += [finished(request, "failed" if fails(request.arm) else "completed") for request in new]


def tasks(means: Mapping[str, float], *, seed_sd: float = 0.01, n: int = 50) -> Scores:
    """Scores of `n` tasks that all runs find equally hard, around a mean for each run."""
    hardness = np.random.default_rng(0).normal(0, 0.1, n)

    def scores(run: str, repeat: int) -> Mapping[str, float]:
        rng = np.random.default_rng([sum(map(ord, run)), repeat])
        values = means[run] + hardness + rng.normal(0, seed_sd) + rng.normal(0, 0.05, n)
        return {f"t{index}": float(value) for index, value in enumerate(values)}

    return scores


def test_a_clear_leader_gets_no_more_seeds_than_it_needs() -> None:
    decision, seeds = play(racing(["a", "b", "c"], tasks({"a": 0.2, "b": 0.8, "c": 0.5}), RacingRules()))
    assert seeds == {"a": 1, "b": 3, "c": 3}
    first, last = decision.notes
    assert (first["racing"], first["added"]) == (["b", "c"], ["b-1", "b-2", "c-1", "c-2"])
    assert last["why"] == "'b' is ahead of all others with 3 seeds"
    assert last["gaps"]["c"]["difference"] == pytest.approx(-0.3, abs=0.05)
    assert last["added"] == []


def test_equals_race_to_the_last_seed() -> None:
    decision, seeds = play(racing(["a", "b"], tasks({"a": 0.5, "b": 0.5}), RacingRules(max_seeds=6)))
    assert seeds == {"a": 6, "b": 6}
    assert decision.notes[-1]["why"].startswith("max_seeds is reached; ")
    assert [note["seeds"] for note in decision.notes] == [3, 4, 5, 6, 6]


def test_what_does_not_matter_is_not_resolved() -> None:
    rules = RacingRules(max_seeds=50, min_effect=0.3)
    decision, seeds = play(racing(["a", "b"], tasks({"a": 0.5, "b": 0.5}), rules))
    assert decision.notes[-1]["why"].endswith("differ by less than 0.3, the smallest effect that matters")
    assert seeds["a"] < 10


def test_less_is_better_where_the_mode_says_so() -> None:
    _, seeds = play(racing(["a", "b", "c"], tasks({"a": 0.2, "b": 0.8, "c": 0.5}), RacingRules(), mode="min"))
    assert seeds == {"a": 3, "b": 1, "c": 3}


def test_one_that_is_clearly_behind_drops_out_and_the_others_race_on() -> None:
    means = {"a": 0.8, "b": 0.8, "c": 0.2}
    decision, seeds = play(racing(list(means), tasks(means), RacingRules(top=3, max_seeds=5)))
    assert seeds == {"a": 5, "b": 5, "c": 3}
    assert "c" not in decision.notes[-1]["racing"]


def test_seeds_that_the_search_had_are_not_trained_again() -> None:
    means = {"a": 0.5, "b": 0.5}
    decision, seeds = play(racing(["a", "b"], tasks(means), RacingRules(first_seeds=4, max_seeds=5)))
    assert seeds == {"a": 5, "b": 5}
    assert decision.notes[0]["added"] == ["a-4", "b-4"] or decision.notes[0]["added"] == ["b-4", "a-4"]


def test_a_race_needs_two() -> None:
    decision, seeds = play(
        racing(["a", "b"], tasks({"a": 0.5, "b": 0.5}), RacingRules()), lambda arm: arm.name == "b-0"
    )
    assert seeds == {"a": 1, "b": 1}
    assert decision.notes[-1]["why"] == "1 of the runs ended with a score; a race needs two"


def test_failing_seeds_end_a_race_and_do_not_hang_it() -> None:
    means = {"a": 0.5, "b": 0.5}
    decision, seeds = play(racing(["a", "b"], tasks(means), RacingRules()), lambda arm: arm.repeat > 0)
    assert seeds == {"a": 5, "b": 5}
    assert decision.notes[-1]["why"].startswith("max_seeds is reached")


def test_one_seed_each_tells_nothing_however_far_they_lie_apart() -> None:
    means = {"a": 0.9, "b": 0.1}
    decision, _ = play(racing(["a", "b"], tasks(means), RacingRules()), lambda arm: arm.repeat > 0)
    assert decision.notes[-1]["why"].startswith("max_seeds is reached")
    assert decision.notes[-1]["gaps"]["b"]["half_width"] is None


def test_scores_without_tasks_are_compared_seed_by_seed() -> None:
    values = {"a": [0.81, 0.79, 0.8, 0.8], "b": [0.51, 0.5, 0.49, 0.5]}
    decision, seeds = play(racing(["a", "b"], lambda run, repeat: {"": values[run][repeat]}, RacingRules()))
    assert seeds == {"a": 3, "b": 3}
    assert decision.notes[-1]["why"].startswith("'a' is ahead")


def test_an_unknown_noise_separates_nothing() -> None:
    gaps = gaps_behind([{"": 0.9}], {"b": [{"": 0.1}]}, 0.95)
    assert (gaps["b"].half_width, gaps["b"].is_clear) == (None, False)


def test_nobody_is_declared_ahead_while_a_seed_is_interrupted() -> None:
    search = racing(["a", "b"], tasks({"a": 0.9, "b": 0.1}), RacingRules())
    outcomes = [finished(request) for request in search.decide([]).requests]
    new = [one for one in search.decide(outcomes).requests if one.key not in {done.request.key for done in outcomes}]
    outcomes += [finished(request) for request in new[:-1]]
    stopped = RunResult(new[-1].arm.name, "cancelled", notes=RunNotes(stop_reason="interrupted"))
    decision = search.decide([*outcomes, ArmOutcome(new[-1], ArmResult(new[-1].arm, stopped))])
    assert len(decision.notes) == 1


@settings(max_examples=30, deadline=None)
@given(means=st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.4, 0.5, 0.6]), min_size=2), data=st.data())
def test_the_order_in_which_arms_end_changes_nothing(means: dict[str, float], data: st.DataObject) -> None:
    scores, rules = tasks(means, n=10), RacingRules(max_seeds=4)
    whole, _ = play(racing(sorted(means), scores, rules))
    search = racing(sorted(means), scores, rules)
    outcomes: list[ArmOutcome] = []
    for _ in range(100):
        if data.draw(st.booleans()):
            search = racing(sorted(means), scores, rules)
        decision = search.decide(data.draw(st.permutations(outcomes)))
        done = {one.request.key for one in outcomes}
        new = [one for one in decision.requests if one.key not in done]
        if not new:
            break
        outcomes.append(finished(data.draw(st.sampled_from(new))))
    assert list(decision.notes) == list(whole.notes)
    assert [one.key for one in decision.requests] == [one.key for one in whole.requests]


def test_equal_runs_are_rarely_told_apart() -> None:
    rules = RacingRules(max_seeds=6)
    wrong = 0
    for world in range(100):
        rng = np.random.default_rng(world)
        drawn = {(run, repeat): 0.6 + rng.normal(0, 0.05) for run in "ab" for repeat in range(6)}
        values = {key: mean + rng.normal(0, 0.2, 30) for key, mean in drawn.items()}
        decision, _ = play(
            racing(
                ["a", "b"],
                lambda run, repeat, values=values: {str(i): float(v) for i, v in enumerate(values[run, repeat])},
                rules,
            )
        )
        wrong += "is ahead" in decision.notes[-1]["why"]
    assert wrong <= 10  # one in 20 is what is promised; twice that is far beyond chance
