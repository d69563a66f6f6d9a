"""The claim of an experiment in one form, and the fingerprint that is taken before the first step."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.config import Metadata
from evsys_sdk.experiment.hypothesis import hypothesis_sha256, normalised


def metadata(**fields: Any) -> Metadata:
    return Metadata.model_validate(fields)


def test_without_a_hypothesis_there_is_nothing_to_register() -> None:
    assert normalised(metadata(success_metric="pass@1")) is None
    assert hypothesis_sha256(metadata(success_metric="pass@1")) is None


def test_a_sentence_claims_that_the_success_metric_gets_better() -> None:
    assert normalised(metadata(hypothesis="it helps", success_metric={"name": "final_loss", "mode": "min"})) == {
        "claim": "it helps",
        "metric": "final_loss",
        "direction": "decrease",
        "min_effect": 0.0,
        "baseline": None,
        "success_metric": {"name": "final_loss", "mode": "min"},
    }


def test_a_sentence_alone_leaves_the_metric_open() -> None:
    found = normalised(metadata(hypothesis="it helps"))
    assert found is not None
    assert (found["metric"], found["direction"], found["success_metric"]) == (None, "increase", None)


def test_a_claim_keeps_what_it_says() -> None:
    claim = {"claim": "x", "metric": "pass@4", "direction": "decrease", "min_effect": 0.02, "baseline": "old"}
    found = normalised(metadata(hypothesis=claim, success_metric="pass@1"))
    assert found == {**claim, "success_metric": {"name": "pass@1", "mode": "max"}}


@pytest.mark.parametrize("metric", [None, "final_loss"])
def test_a_claim_about_a_metric_to_minimise_means_a_decrease(metric: str | None) -> None:
    found = normalised(
        metadata(hypothesis={"claim": "x", "metric": metric}, success_metric={"name": "final_loss", "mode": "min"})
    )
    assert found is not None
    assert (found["metric"], found["direction"]) == ("final_loss", "decrease")


def test_the_fingerprint_survives_the_way_through_the_record() -> None:
    given = metadata(hypothesis={"claim": "x", "min_effect": 1}, success_metric="pass@1", note="free text")
    recorded = Metadata.model_validate(given.model_dump(mode="json"))
    assert hypothesis_sha256(given) == hypothesis_sha256(recorded)
    assert len(hypothesis_sha256(given) or "") == 64


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
    given = {"hypothesis": {"claim": "x", "min_effect": 0.1}, "success_metric": "pass@1"}
    assert hypothesis_sha256(metadata(**given)) != hypothesis_sha256(metadata(**{**given, **changed}))


def test_what_decides_nothing_does_not_change_the_fingerprint() -> None:
    given = metadata(hypothesis="x", success_metric="pass@1")
    same = metadata(hypothesis="x", success_metric={"name": "pass@1", "mode": "max"}, tags=["later"])
    assert hypothesis_sha256(given) == hypothesis_sha256(same)
