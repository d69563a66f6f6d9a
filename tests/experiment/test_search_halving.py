"""Which arms a halving trains and how far: decided by made-up curves, in any order, and the same again after a kill."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evsys_sdk import RunConfig, RunResult
from evsys_sdk.experiment.arms.arm import Arm
from evsys_sdk.experiment.arms.results import ArmResult
from evsys_sdk.experiment.search.allocation import AllocationDecision, ArmOutcome, ArmRequest
from evsys_sdk.experiment.search.halving import Halving, rungs_of, survivors
from evsys_sdk.experiment.search.objective import Objective
from evsys_sdk.protocols import RunNotes

LENGTH, EVERY = 90, 10
type Curves = Mapping[str, Mapping[int, float]]


def arm(name: str) -> Arm:
    run = RunConfig.model_validate(
        {"name": name, "data": {"path": "x"}, "model": {"name": "m"}, "algorithm": {"kind": "sft"}}
    )
    return Arm(run, 0, name)


def line(final: float) -> dict[int, float]:
    """A curve that rises to its end."""
    return {step: final * step / LENGTH for step in range(EVERY, LENGTH + 1, EVERY)}


def halving(curves: Curves, *, eta: int = 3, keep: int = 1, mode: Any = "max", lengths: Any = None) -> Halving:
    arms = [arm(name) for name in curves]
    lengths = lengths or dict.fromkeys(curves, LENGTH)
    rungs = rungs_of(lengths, every=dict.fromkeys(curves, EVERY), eta=eta, keep=keep)
    return Halving(arms, rungs, Objective("pass@1", "v", mode, EVERY), lambda arm: curves[arm.name], eta, keep)


def paused(request: ArmRequest, **notes: Any) -> ArmOutcome:
    """How a request ends where nothing goes wrong."""
    result = RunResult(request.arm.name, "completed", notes=RunNotes(**notes))
    if request.until_step is not None:
        result.status, result.notes.stop_reason = "cancelled", f"paused after step {request.until_step}"
    return ArmOutcome(request, ArmResult(request.arm, result))


def ended(request: ArmRequest, status: Any, **notes: Any) -> ArmOutcome:
    return ArmOutcome(request, ArmResult(request.arm, RunResult(request.arm.name, status, notes=RunNotes(**notes))))


def play(search: Halving, how: Mapping[str, Any] | None = None) -> tuple[AllocationDecision, dict[str, int | None]]:
    """Train whatever is asked for; returns the last decision, and how far each arm was taken."""
    outcomes: list[ArmOutcome] = []
    while True:
        decision = search.decide(outcomes)
        new = [request for request in decision.requests if request.key not in {one.request.key for one in outcomes}]
        if not new:
            return decision, {one.request.arm.name: one.request.until_step for one in outcomes}
        outcomes += [(how or {}).get(request.arm.name, paused)(request) for request in new]


NINE = {f"r{index}": line(index / 10) for index in range(1, 10)}


def test_one_in_three_goes_on_three_times_as_long() -> None:
    decision, reached = play(halving(NINE))
    assert reached == {**dict.fromkeys(NINE, 10), "r7": 30, "r8": 30, "r9": None}
    first, second = decision.notes
    assert (first["rung"], first["of"], first["step"], first["metric"]) == (1, 2, 10, "val/v/pass@1")
    assert (first["kept"], second["kept"], second["stopped"]) == (["r9", "r8", "r7"], ["r9"], ["r7", "r8"])
    assert first["stopped"] == ["r1", "r2", "r3", "r4", "r5", "r6"]
    assert first["scores"] == {name: curve[10] for name, curve in NINE.items()}
    assert first["why"] == "the best 3 of 9 go on"


def test_less_is_better_where_the_mode_says_so() -> None:
    decision, reached = play(halving(NINE, mode="min"))
    assert [name for name, step in reached.items() if step is None] == ["r1"]
    assert decision.notes[0]["kept"] == ["r1", "r2", "r3"]


def test_two_finalists_are_both_trained_to_the_end() -> None:
    _, reached = play(halving(NINE, keep=2))
    assert [name for name, step in reached.items() if step is None] == ["r8", "r9"]


@pytest.mark.parametrize(
    ("n", "eta", "keep", "expected"),
    [
        (9, 1.5, 2, [6, 4, 3, 2]),
        (3, 1.1, 1, [2, 1]),  # each comparison stops at least one
        (9, 3, 1, [3, 1]),
        (9, 2, 1, [5, 3, 2, 1]),
        (9, 4, 1, [3, 1]),
        (10, 3, 1, [4, 2, 1]),
        (9, 3, 2, [3, 2]),
        (2, 3, 1, [1]),
        (2, 3, 2, []),
        (1, 3, 1, []),
        (27, 3, 5, [9, 5]),
    ],
)
def test_how_many_go_on(n: int, eta: float, keep: int, expected: list[int]) -> None:
    assert survivors(n, eta, keep) == expected


@pytest.mark.parametrize(
    ("length", "every", "n", "eta", "expected"),
    [
        (90, 10, 9, 3, [10, 30]),
        (100, 10, 9, 3, [10, 30]),  # 11.1 and 33.3 move to the nearest scoring
        (170, 10, 9, 3, [20, 60]),
        (40, 10, 9, 3, [10, 20]),  # 4.4 and 13.3 cannot both be after step 10
        (20, 10, 9, 3, [10]),  # there is no room for a second comparison before the end
        (10, 10, 9, 3, []),
        (64, 1, 16, 4, [4, 16]),
        (64, 1, 8, 2, [8, 16, 28]),  # the last no later than four ninths of the way
        (90, 1, 4, 1.5, [13, 27, 40]),  # a gentle eta compares often, and early
        (90, 10, 1, 3, []),
    ],
)
def test_arms_pause_where_val_is_scored(length: int, every: int, n: int, eta: float, expected: list[int]) -> None:
    names = [str(index) for index in range(n)]
    rungs = rungs_of(dict.fromkeys(names, length), every=dict.fromkeys(names, every), eta=eta)
    assert list(rungs.values()) == [expected] * n


def test_runs_of_different_lengths_are_compared_at_the_same_share_of_their_own() -> None:
    lengths = {"short": 90, "long": 180, **dict.fromkeys(list(NINE)[:7], 90)}
    curves = {name: dict.fromkeys(range(EVERY, length + 1, EVERY), 0.5) for name, length in lengths.items()}
    curves["long"] = dict.fromkeys(curves["long"], 0.9)
    decision, reached = play(halving(curves, lengths=lengths))
    assert reached["long"] is None
    assert decision.notes[0]["step"] is None
    assert decision.notes[0]["steps"]["long"] == 20
    assert decision.notes[0]["steps"]["short"] == 10


def test_of_equal_scores_the_one_that_was_better_on_the_way_is_ahead() -> None:
    early, late = {10: 0.5, 20: 0.8, 30: 0.8}, {10: 0.5, 20: 0.6, 30: 0.8}
    curves = {**{name: dict.fromkeys((10, 20, 30, 90), 0.1) for name in list(NINE)[:7]}, "late": late, "early": early}
    decision, reached = play(halving(curves))
    assert decision.notes[1]["kept"] == ["early"]
    assert (reached["early"], reached["late"]) == (None, 30)


def test_what_nothing_tells_apart_goes_on_together() -> None:
    curves = {name: dict.fromkeys(range(10, 91, 10), 0.0) for name in NINE}
    decision, reached = play(halving(curves))
    assert set(reached.values()) == {None}
    assert decision.notes[0]["kept"] == list(NINE)
    assert decision.notes[0]["why"] == "the best 3 of 9 go on, and 6 more that cannot be told from the last of them"
    late = {**curves, "r4": {**curves["r4"], 30: 0.1}}
    assert [name for name, step in play(halving(late))[1].items() if step is None] == ["r4"]


@pytest.mark.parametrize("missing", [{}, {20: 0.9}, {10: math.nan}], ids=["none", "another step", "not a number"])
def test_an_arm_without_a_score_cannot_go_on(missing: dict[int, float]) -> None:
    curves = {**NINE, "r9": {step: score for step, score in missing.items() if math.isfinite(score)}}
    decision, reached = play(halving(curves))
    assert (reached["r9"], reached["r8"]) == (10, None)
    assert decision.notes[0]["scores"]["r9"] is None
    assert "r9" in decision.notes[0]["stopped"]
    assert decision.notes[0]["why"] == "the best 3 of 9 go on; 1 without a score cannot"


def test_nobody_goes_on_where_nobody_has_a_score() -> None:
    decision, reached = play(halving({name: {} for name in NINE}))
    assert set(reached.values()) == {10}
    assert decision.notes[0]["why"] == "none of 9 has a score, so none goes on"
    assert len(decision.notes) == 1


def test_all_arms_may_fail() -> None:
    decision, reached = play(halving(NINE), dict.fromkeys(NINE, lambda request: ended(request, "failed")))
    assert set(reached.values()) == {10}
    assert decision.notes[0]["kept"] == []


def test_the_only_one_that_is_left_is_trained_to_its_end_at_once() -> None:
    failing = {name: lambda request: ended(request, "failed") for name in NINE if name != "r1"}
    decision, reached = play(halving(NINE), failing)
    assert reached["r1"] is None
    assert [note["rung"] for note in decision.notes] == [1]


def test_a_single_arm_is_simply_trained() -> None:
    decision, reached = play(halving({"r1": line(0.3)}))
    assert (reached, list(decision.notes)) == ({"r1": None}, [])


def test_an_arm_that_stopped_early_competes_with_its_last_score_and_is_not_asked_again() -> None:
    curves = {**NINE, "r5": {10: 0.95}}
    asked: list[int | None] = []

    def mastered(request: ArmRequest) -> ArmOutcome:
        asked.append(request.until_step)
        return ended(request, "completed", stop_reason="there is nothing left to learn")

    decision, _ = play(halving(curves), {"r5": mastered})
    assert asked == [10]
    assert [note["kept"][0] for note in decision.notes] == ["r5", "r5"]
    assert decision.notes[1]["kept"] == ["r5"]


@pytest.mark.parametrize(
    ("reason", "decides"),
    [
        ("interrupted", False),
        ("budget: tokens 10,240 of 10,000", False),
        ("budget: this arm has used tokens 10,240 of 10,000", True),
    ],
)
def test_an_arm_that_will_go_on_holds_the_decision_up(reason: str, decides: bool) -> None:
    search = halving(NINE)
    first = search.decide([])
    outcomes = [paused(request) for request in first.requests]
    outcomes[3] = ended(first.requests[3], "cancelled", stop_reason=reason)
    assert bool(search.decide(outcomes).notes) is decides


def test_the_same_object_says_that_nothing_is_new() -> None:
    search = halving(NINE)
    first = search.decide([])
    assert search.decide([paused(first.requests[0])]) is first
    assert search.decide([paused(request) for request in first.requests]) is not first


def scores(steps: Iterable[int]) -> st.SearchStrategy[dict[int, float]]:
    some = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
    return st.fixed_dictionaries({}, optional=dict.fromkeys(steps, some))


@settings(max_examples=60, deadline=None)
@given(
    curves=st.dictionaries(st.sampled_from(list(NINE)), scores(range(10, 91, 10)), min_size=1),
    eta=st.sampled_from([2, 3, 4]),
    keep=st.sampled_from([1, 2]),
    failing=st.sets(st.sampled_from(list(NINE))),
    data=st.data(),
)
def test_decisions_depend_neither_on_the_order_of_outcomes_nor_on_who_asks(
    curves: Curves, eta: int, keep: int, failing: set[str], data: st.DataObject
) -> None:
    how = {name: lambda request: ended(request, "failed") for name in failing}
    whole, reached = play(halving(curves, eta=eta, keep=keep), how)
    search = halving(curves, eta=eta, keep=keep)
    outcomes: list[ArmOutcome] = []
    for _ in range(100):  # one at a time, and now and then by a process that knows only what is on disk
        if data.draw(st.booleans()):
            search = halving(curves, eta=eta, keep=keep)
        decision = search.decide(data.draw(st.permutations(outcomes)))
        open_ones = [one for one in decision.requests if one.key not in {done.request.key for done in outcomes}]
        if not open_ones:
            break
        request = data.draw(st.sampled_from(open_ones))
        outcomes.append(how.get(request.arm.name, paused)(request))
    assert list(decision.notes) == list(whole.notes)
    assert [one.key for one in decision.requests] == [one.key for one in whole.requests]
    assert {name for name, step in reached.items() if step is None} == {
        one.request.arm.name for one in outcomes if one.request.until_step is None
    }


@settings(max_examples=40, deadline=None)
@given(curves=st.dictionaries(st.sampled_from(list(NINE)), scores(range(10, 91, 10)), min_size=1))
def test_after_a_kill_the_same_is_decided_although_arms_are_further_by_then(curves: Curves) -> None:
    whole, reached = play(halving(curves))

    def recalled(request: ArmRequest) -> ArmOutcome:
        """The record has only the last result of an arm, which answers every request that it went beyond."""
        last = ArmRequest(request.arm, reached[request.arm.name])
        return ArmOutcome(request, paused(last).result)

    again, _ = play(halving(curves), dict.fromkeys(curves, recalled))
    assert list(again.notes) == list(whole.notes)
