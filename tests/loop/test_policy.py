"""How a portfolio shares out its budget: a pure function of what was seen."""

from __future__ import annotations

from dataclasses import replace

from evsys_sdk.loop.campaigns.policy import DecisionInputs, FamilyState, Point, decide, forecast, has_gain


def family(name: str, *scores: float, each: float = 5.0, **more: object) -> FamilyState:
    points = [Point(each * (at + 1), score, 0.02) for at, score in enumerate(scores)]
    return replace(FamilyState(name, each * len(scores), points), **more)  # type: ignore[arg-type]


def observed(*families: FamilyState, **more: object) -> DecisionInputs:
    left = 100 - sum(one.spent for one in families)
    inputs = DecisionInputs(families, budget=100, left=left, baseline=Point(0.0, 0.2, 0.02), seeds=3)
    return replace(inputs, **more)  # type: ignore[arg-type]


def test_every_family_gets_a_probe_first() -> None:
    inputs = observed(family("a", 0.9), family("b"), family("c"))
    decision = decide(inputs)
    assert (decision.action, decision.family, decision.amount) == ("probe", "b", 5.0)
    assert decide(observed(family("a", 0.9), family("b", blocked="it failed"), family("c"))).family == "c"


def test_a_family_without_a_score_is_probed_again_while_there_is_something_to_explore_with() -> None:
    unscored = replace(family("b"), spent=5.0)
    assert decide(observed(family("a", 0.9), unscored)).family == "b"
    assert decide(observed(family("a", 0.9), unscored, left=46)).action == "confirm"
    assert decide(observed(unscored, left=46)).action == "stop"
    assert decide(observed(family("a"), family("b"), left=-1)).action == "probe", "one is scored, whatever the time"


def test_the_same_observations_and_seed_give_the_same_decision() -> None:
    inputs = observed(family("a", 0.3), family("b", 0.32), family("c", 0.25))
    assert [decide(inputs).to_dict() for _ in range(3)] == [decide(inputs).to_dict()] * 3
    drawn = {decide(replace(inputs, seed=seed)).family for seed in range(30)}
    assert len(drawn) > 1, "a seed decides among families that could all be best"


def test_a_forecast_knows_less_the_less_was_seen() -> None:
    inputs = observed(family("a", 0.3), family("b", 0.3, 0.38, 0.44, each=4.0))
    once, often = (forecast(one, inputs) for one in inputs.families)
    assert once.low < once.mean < once.high
    assert often.high - often.low < once.high - once.low
    assert often.mean > 0.4


def test_a_late_riser_is_preferred_to_an_early_one_that_has_stopped() -> None:
    early = family("early", 0.45, 0.45, 0.45, each=3.0)
    late = family("late", 0.22, 0.3, 0.42, each=3.0)
    counts = [decide(observed(early, late, seed=seed)).family for seed in range(20)]
    assert counts.count("late") > 15


def test_without_a_confirmed_gain_a_family_gets_half_of_the_rest_at_most() -> None:
    flat = family("flat", 0.21, 0.22, 0.2, 0.21, each=5.5)
    inputs = observed(flat, family("other", 0.2, 0.2), confirm_share=0.6, seeds=2)
    assert not has_gain(flat, inputs)
    assert {decide(replace(inputs, seed=seed)).family for seed in range(20)} == {"other"}
    gained = family("flat", 0.21, 0.22, 0.2, 0.41, each=5.5)
    assert has_gain(gained, inputs)
    assert "flat" in {
        decide(replace(inputs, families=[gained, inputs.families[1]], seed=seed)).family for seed in range(20)
    }


def test_it_confirms_when_the_share_for_exploring_is_spent_and_stops_afterwards() -> None:
    inputs = observed(family("a", 0.3), family("b", 0.5), left=46)
    decision = decide(inputs)
    assert (decision.action, decision.family) == ("confirm", "b")
    assert "share for exploring is spent" in decision.reason
    assert decide(replace(inputs, confirmed=True)).action == "stop"
    assert decide(observed(family("a", blocked="it failed"))).reason == "no family has a score (a: it failed)"


def test_scores_of_any_size_can_be_forecast() -> None:
    losses = observed(family("a", -2.1, -1.8), family("b", -2.2, -2.1), baseline=Point(0.0, -2.5, 0.05))
    assert decide(losses).action in ("train", "confirm")
    assert forecast(losses.families[0], losses).mean > -1.9


def test_slices_without_a_new_score_grow_once_and_then_end_a_family() -> None:
    first, other = family("a", 0.3, 0.5, each=2.0), family("b", 0.21, ended=True)
    amounts = [decide(observed(replace(first, fruitless=count), other)).amount for count in (0, 1)]
    assert amounts == [5.0, 10.0]
    assert decide(observed(replace(first, fruitless=2), other)).action == "confirm"
