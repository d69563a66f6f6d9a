"""The claim of an experiment in one form, and the fingerprint that is taken before the first step."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.config import ExperimentConfig, Metadata
from evsys_sdk.experiment.arms.arm import expand_arms
from evsys_sdk.experiment.hypothesis import claim_problems, find_claim, hypothesis_sha256, normalise_hypothesis

DATA = {"source_kind": "in_memory", "rows": [{"messages": []}]}


def sft(**params: Any) -> dict[str, Any]:
    return {"kind": "sft", "params": params}


def metadata(**fields: Any) -> Metadata:
    return Metadata.model_validate(fields)


def test_without_a_hypothesis_there_is_nothing_to_register() -> None:
    assert normalise_hypothesis(metadata(success_metric="pass@1")) is None
    assert hypothesis_sha256(metadata(success_metric="pass@1")) is None


def test_a_sentence_claims_that_the_success_metric_gets_better() -> None:
    assert normalise_hypothesis(
        metadata(hypothesis="it helps", success_metric={"name": "final_loss", "mode": "min"})
    ) == {
        "claim": "it helps",
        "metric": "final_loss",
        "direction": "decrease",
        "min_effect": 0.0,
        "baseline": None,
        "success_metric": {"name": "final_loss", "mode": "min"},
    }


def test_a_sentence_alone_leaves_the_metric_open() -> None:
    hypothesis = normalise_hypothesis(metadata(hypothesis="it helps"))
    assert hypothesis is not None
    assert (hypothesis["metric"], hypothesis["direction"], hypothesis["success_metric"]) == (None, "increase", None)


def test_a_claim_keeps_what_it_says() -> None:
    claim = {"claim": "x", "metric": "pass@4", "direction": "decrease", "min_effect": 0.02, "baseline": "old"}
    hypothesis = normalise_hypothesis(metadata(hypothesis=claim, success_metric="pass@1"))
    assert hypothesis == {**claim, "success_metric": {"name": "pass@1", "mode": "max"}}


@pytest.mark.parametrize("metric", [None, "final_loss"])
def test_a_claim_about_a_metric_to_minimise_means_a_decrease(metric: str | None) -> None:
    hypothesis = normalise_hypothesis(
        metadata(hypothesis={"claim": "x", "metric": metric}, success_metric={"name": "final_loss", "mode": "min"})
    )
    assert hypothesis is not None
    assert (hypothesis["metric"], hypothesis["direction"]) == ("final_loss", "decrease")


def test_the_fingerprint_survives_the_way_through_the_record() -> None:
    original = metadata(hypothesis={"claim": "x", "min_effect": 1}, success_metric="pass@1", note="free text")
    recorded = Metadata.model_validate(original.model_dump(mode="json"))
    assert hypothesis_sha256(original) == hypothesis_sha256(recorded)
    assert len(hypothesis_sha256(original) or "") == 64


@pytest.mark.parametrize(
    "changed",
    [
        {"hypothesis": {"claim": "y", "min_effect": 0.1}},
        {"hypothesis": {"claim": "x", "min_effect": 0.05}},
        {"hypothesis": {"claim": "x", "min_effect": 0.1, "baseline": "b"}},
        {"hypothesis": {"claim": "x", "min_effect": 0.1, "direction": "decrease"}},
        {"success_metric": "pass@4"},
    ],
)
def test_whatever_would_change_the_answer_changes_the_fingerprint(changed: dict[str, Any]) -> None:
    fields = {"hypothesis": {"claim": "x", "min_effect": 0.1}, "success_metric": "pass@1"}
    assert hypothesis_sha256(metadata(**fields)) != hypothesis_sha256(metadata(**{**fields, **changed}))


def test_what_decides_nothing_does_not_change_the_fingerprint() -> None:
    original = metadata(hypothesis="x", success_metric="pass@1")
    same = metadata(hypothesis="x", success_metric={"name": "pass@1", "mode": "max"}, tags=["later"])
    assert hypothesis_sha256(original) == hypothesis_sha256(same)


class TestKinds:
    @pytest.mark.parametrize(
        ("claim", "said"),
        [
            ({"kind": "at_least"}, "needs 'level'"),
            ({"kind": "not_worse"}, "needs 'margin'"),
            ({"kind": "trend"}, "needs 'axis'"),
            ({"level": 0.5}, "'level' belongs to claims of kind 'at_least'"),
            ({"kind": "not_worse", "margin": 0.1, "axis": "x"}, "'axis' belongs to claims of kind 'trend'"),
            ({"scale": "log"}, "'scale' belongs to claims of kind 'trend'"),
            ({"kind": "not_worse", "margin": 0.1, "min_effect": 0.1}, "has no 'min_effect'"),
            ({"kind": "at_least", "level": 0.5, "baseline": "b"}, "compares with no baseline"),
            ({"baseline_repeats": 5}, "needs the name of a run"),
        ],
    )
    def test_what_does_not_belong_together_is_refused(self, claim: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            metadata(hypothesis={"claim": "x", **claim})

    def test_a_plain_claim_keeps_the_fingerprint_it_always_had(self) -> None:
        original = metadata(hypothesis={"claim": "x", "min_effect": 0.1}, success_metric="pass@1")
        same = metadata(hypothesis={"claim": "x", "min_effect": 0.1, "kind": "better"}, success_metric="pass@1")
        assert hypothesis_sha256(original) == hypothesis_sha256(same)
        assert hypothesis_sha256(original) == "84d571083f789ad018e76e8277d238a07cef160e608cc0f48ac25d92917673d5"

    @pytest.mark.parametrize(
        "other",
        [
            {"kind": "not_worse", "margin": 0.1},
            {"kind": "at_least", "level": 0.1},
        ],
    )
    def test_the_kind_is_part_of_the_fingerprint(self, other: dict[str, Any]) -> None:
        plain = hypothesis_sha256(metadata(hypothesis={"claim": "x"}))
        assert hypothesis_sha256(metadata(hypothesis={"claim": "x", **other})) != plain

    def test_what_must_be_exceeded_follows_from_the_kind(self) -> None:
        claim = find_claim(metadata(hypothesis={"claim": "x", "kind": "not_worse", "margin": 0.02}))
        assert claim is not None
        assert claim.threshold == -0.02
        assert claim.rule("pass@1").startswith("Supported if, on pass@1, the interval of any run's difference")

    def test_the_rule_says_what_is_spent_on_validation(self) -> None:
        claim = find_claim(metadata(hypothesis={"claim": "x"}))
        assert claim is not None
        assert "validation selects" in claim.rule("m", validated=True)
        assert "validation selects" not in claim.rule("m")


class TestAxis:
    def config(self, *values: Any, **claim: Any) -> ExperimentConfig:
        axis = "algorithm.params.max_steps"
        about = {"hypothesis": {"claim": "x", "kind": "trend", "axis": axis, **claim}}
        runs = [
            {"name": f"r{at}", "data": DATA, "model": {"name": "m"}, "algorithm": sft(max_steps=value)}
            for at, value in enumerate(values)
        ]
        return ExperimentConfig.model_validate({"name": "e", "metadata": about, "runs": runs})

    def test_a_number_that_varies_is_an_axis(self) -> None:
        assert claim_problems(self.config(1, 2, 4)) == []

    @pytest.mark.parametrize(
        ("values", "claim", "said"),
        [
            ((1, 1), {}, "there is no trend"),
            ((1, "many"), {}, "a number in every run, and one run has 'many'"),
            ((0, 2), {"scale": "log"}, "a positive number in every run, and one run has 0"),
            ((1, 2), {"axis": "algorithm.params.lr"}, "one run has None"),
        ],
    )
    def test_what_is_none_is_refused_before_anything_is_spent(
        self, values: tuple[Any, ...], claim: dict[str, Any], said: str
    ) -> None:
        [problem] = claim_problems(self.config(*values, **claim))
        assert said in str(problem)
        assert "metadata.hypothesis.axis" in str(problem)


def test_a_baseline_may_have_more_seeds_than_the_others() -> None:
    runs = [{"name": name, "data": DATA, "model": {"name": "m"}, "algorithm": sft()} for name in ("old", "new")]
    about = {"hypothesis": {"claim": "x", "baseline": "old", "baseline_repeats": 4}}
    config = ExperimentConfig.model_validate({"name": "e", "n_repeats": 2, "metadata": about, "runs": runs})
    assert [arm.name for arm in expand_arms(config)] == [
        *(f"old__seed{seed}" for seed in (42, 43, 44, 45)),
        *(f"new__seed{seed}" for seed in (42, 43)),
    ]
