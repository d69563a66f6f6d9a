"""The verdict: each rule on evidence small enough to see through."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evsys_sdk.config import Metadata
from evsys_sdk.experiment.conclusion import Conclusion
from evsys_sdk.experiment.conclusion.evidence import ArmEvidence, Evidence, Looks, RunEvidence
from evsys_sdk.experiment.conclusion.markdown import as_markdown
from evsys_sdk.experiment.conclusion.verdict import conclude_from
from evsys_sdk.experiment.hypothesis import hypothesis_sha256

from .conclusion_records import VAL, evidence, metadata, scoring


def runs(seeds: int = 3, tasks: int = 60, seed: int = 0, **gains: float) -> dict[str, Any]:
    """A baseline that solves about 0.4 of each task, and runs that solve so much more."""
    draw = np.random.default_rng(seed)
    ease = draw.uniform(0.2, 0.6, tasks)
    return {
        name: np.clip(ease + gain + draw.normal(0, 0.05, (seeds, tasks)) + draw.normal(0, 0.005, (seeds, 1)), 0, 1)
        for name, gain in {"baseline": 0.0, **gains}.items()
    }


def with_arms(given: Evidence, run: str, **changes: Any) -> Evidence:
    """The evidence with every arm of one run changed."""
    changed = [
        RunEvidence(one.name, [replace(arm, **changes) for arm in one.arms] if one.name == run else one.arms, one.tags)
        for one in given.runs
    ]
    return replace(given, runs=changed)


def with_arm(given: Evidence, run: str, seed: int, **changes: Any) -> Evidence:
    changed = [
        RunEvidence(
            one.name,
            [replace(arm, **changes) if (one.name, arm.seed) == (run, seed) else arm for arm in one.arms],
            one.tags,
        )
        for one in given.runs
    ]
    return replace(given, runs=changed)


def claim(**fields: Any) -> Metadata:
    return metadata({"claim": "it helps", **fields})


class TestVerdict:
    def test_a_clear_gain_on_three_seeds_is_supported(self) -> None:
        found = conclude_from(evidence(runs(seeds=3, a=0.2)))
        assert (found.verdict, found.judged, found.best_arm, found.baseline) == ("supported", "a", "a", "baseline")
        assert found.summary == "Supported: `a` scores +0.199 [+0.181, +0.221] against `baseline` on val/suite/pass@1."
        comparison = found.comparison("a")
        assert comparison is not None
        assert comparison.low is not None
        assert comparison.low > 0.1

    @pytest.mark.parametrize("seeds", [1, 2])
    def test_one_or_two_seeds_are_at_most_promising(self, seeds: int) -> None:
        found = conclude_from(evidence(runs(seeds=seeds, a=0.3)))
        assert found.verdict == "promising_unconfirmed"
        assert found.reasons[0] == "fewer than 3 seeds of `a`, `baseline`, which a supported claim needs"
        assert "n_repeats: 3" in " ".join(found.next)

    def test_one_seed_of_the_baseline_is_not_enough_either(self) -> None:
        scores = runs(seeds=3, a=0.3)
        found = conclude_from(evidence({"baseline": scores["baseline"][:1], "a": scores["a"]}))
        assert found.verdict == "promising_unconfirmed"
        assert "baseline" in found.reasons[0]

    def test_no_difference_is_inconclusive(self) -> None:
        found = conclude_from(evidence(runs(a=0.0)))
        assert found.verdict == "inconclusive"
        assert found.reasons == ["the interval holds values on both sides of what was claimed"]

    def test_a_loss_refutes_the_claim_of_a_gain(self) -> None:
        found = conclude_from(evidence(runs(a=-0.2, b=-0.15)))
        assert (found.verdict, found.best_arm) == ("refuted", "baseline")

    def test_a_claim_is_refuted_when_no_interval_reaches_the_claimed_effect(self) -> None:
        given = runs(a=0.02)
        assert conclude_from(evidence(given, about=claim(min_effect=0.2))).verdict == "refuted"
        assert conclude_from(evidence(given, about=claim(min_effect=0.02))).verdict == "inconclusive"

    def test_one_run_that_may_reach_the_effect_keeps_the_claim_alive(self) -> None:
        found = conclude_from(evidence(runs(a=0.0, b=0.1), about=claim(min_effect=0.1)))
        assert (found.verdict, found.judged) == ("inconclusive", "b")
        assert found.reasons == ["the interval holds values on both sides of what was claimed"]

    def test_with_one_seed_nothing_is_refuted(self) -> None:
        found = conclude_from(evidence(runs(seeds=1, a=-0.3)))
        assert found.verdict == "inconclusive"
        assert "one seed cannot tell" in found.reasons[0]

    def test_a_run_without_a_score_might_have_shown_the_effect(self) -> None:
        given = with_arms(evidence(runs(a=-0.2, b=0.0)), "b", status="failed", error="boom", scorings={})
        found = conclude_from(given)
        assert found.verdict == "inconclusive"
        assert "`b` without a score" in found.reasons[0]

    def test_without_a_hypothesis_none_is_judged(self) -> None:
        found = conclude_from(evidence(runs(a=0.2), about=metadata(None)))
        assert (found.verdict, found.best_arm, found.judged) == ("inconclusive", "a", None)
        assert found.summary == "No hypothesis was stated, so none is judged; the best run is `a`."

    def test_one_run_alone_has_nothing_to_be_compared_with(self) -> None:
        given = {"a": runs(a=0.2)["a"]}
        found = conclude_from(evidence(given))
        assert (found.verdict, found.best_arm, found.comparisons) == ("inconclusive", "a", [])
        assert "nothing to compare with" in found.summary
        assert "models: [base]" in " ".join(found.next)

    def test_a_claim_that_was_not_registered_is_at_most_promising(self) -> None:
        found = conclude_from(evidence(runs(a=0.2), registered=False, registered_sha256=None))
        assert found.verdict == "promising_unconfirmed"
        assert not found.registered


class TestInvalid:
    def test_another_claim_than_the_registered_one(self) -> None:
        found = conclude_from(evidence(runs(a=0.2), registered_sha256="0" * 64))
        assert found.verdict == "invalid"
        assert "registered before the first step" in found.summary
        assert found.best_arm == "a"

    def test_a_claim_that_came_after_the_start(self) -> None:
        assert conclude_from(evidence(runs(a=0.2), registered_sha256=None)).verdict == "invalid"

    def test_runs_that_answered_different_tasks(self) -> None:
        scores = runs(a=0.2)
        given = with_arm(evidence(scores), "a", 1, scorings={VAL: scoring(VAL, scores["a"][1], sha256="other")})
        found = conclude_from(given)
        assert (found.verdict, found.best_arm, found.comparisons) == ("invalid", None, [])
        assert "benchmark changed" in found.summary

    def test_an_experiment_that_was_invalidated(self) -> None:
        found = conclude_from(evidence(runs(a=0.2), invalidated="the verifier was broken"))
        assert (found.verdict, found.best_arm) == ("invalid", None)
        assert found.summary == "Invalid: the experiment was invalidated: the verifier was broken."

    def test_a_baseline_that_failed(self) -> None:
        given = with_arms(evidence(runs(a=0.2)), "baseline", status="failed", error="no memory", scorings={})
        found = conclude_from(given)
        assert found.verdict == "invalid"
        assert "`baseline` has no score: it failed: no memory" in found.summary

    def test_a_baseline_that_does_not_exist(self) -> None:
        found = conclude_from(evidence(runs(a=0.2), about=claim(baseline="old")))
        assert found.verdict == "invalid"
        assert "`old` is not a run" in found.summary
        assert "baseline, a" in found.next[0]

    def test_nothing_was_scored(self) -> None:
        given = evidence(runs(a=0.2))
        for run in ("a", "baseline"):
            given = with_arms(given, run, status="failed", error="boom", scorings={})
        found = conclude_from(given)
        assert (found.verdict, found.best_arm, len(found.not_scored)) == ("invalid", None, 6)


class TestBaseline:
    def test_the_hypothesis_may_name_any_run(self) -> None:
        found = conclude_from(evidence(runs(a=0.2, b=-0.2), about=claim(baseline="b")))
        assert (found.baseline, found.judged, found.verdict) == ("b", "a", "supported")

    def test_a_tag_makes_a_baseline(self) -> None:
        scores = runs(a=0.2, b=0.0)
        given = evidence({name: scores[name] for name in ("a", "b")})
        given = replace(given, runs=[given.runs[0], replace(given.runs[1], tags=["baseline"])])
        assert (conclude_from(given).baseline, conclude_from(given).baseline_is) == ("b", "it is tagged so")

    def test_the_model_before_training_is_a_baseline_without_seeds(self) -> None:
        scores = runs(a=0.2)
        key = ("baseline", "val/suite/base")
        given = evidence({"a": scores["a"]})
        base = scoring(key, scores["baseline"][0], sha256="sha-val")
        arms = [replace(arm, scorings={**arm.scorings, key: base}) for arm in given.runs[0].arms]
        found = conclude_from(replace(given, runs=[RunEvidence("a", arms)]))
        assert (found.baseline, found.verdict, found.best_arm) == ("base", "supported", "a")
        assert [run.name for run in found.runs] == ["a", "base"]

    def test_a_base_model_that_answered_other_tasks_is_no_baseline(self) -> None:
        scores = runs(a=0.2)
        key = ("baseline", "val/suite/base")
        given = evidence({"a": scores["a"]})
        arm = given.runs[0].arms[0]
        other = {**arm.scorings, key: scoring(key, scores["baseline"][0], sha256="other")}
        found = conclude_from(with_arm(given, "a", 0, scorings=other))
        assert found.verdict == "invalid"
        assert "benchmark changed" in found.summary

    def test_a_base_model_is_compared_by_value_where_tasks_have_no_scores(self) -> None:
        scores = runs(a=0.2)
        key = ("baseline", "val/suite/base")
        given = evidence({"a": scores["a"]})
        for seed in range(3):
            found = {VAL: scoring(VAL, scores["a"][seed]), key: scoring(key, scores["baseline"][0], sha256="sha-val")}
            bare = {
                at: replace(one, scores={"pass@1": replace(one.scores["pass@1"], per_task=None)})
                for at, one in found.items()
            }
            given = with_arm(given, "a", seed, scorings=bare)
        concluded = conclude_from(given)
        assert (concluded.baseline, concluded.verdict) == ("base", "supported")
        assert any("no scores by task" in threat for threat in concluded.threats)

    def test_else_the_first_run_is_one_and_that_is_said(self) -> None:
        scores = runs(a=0.2, b=0.0)
        found = conclude_from(evidence({"b": scores["b"], "a": scores["a"]}))
        assert found.baseline == "b"
        assert str(found.baseline_is).startswith("it is the first run")


class TestChoosing:
    def test_val_chooses_and_test_reports(self) -> None:
        val, test = runs(seed=1, a=0.2, b=0.0), runs(seed=2, a=0.2, b=0.3)
        found = conclude_from(evidence(val, test))
        assert (found.best_arm, found.judged, found.verdict) == ("a", "a", "supported")
        assert found.metric == "test/suite/pass@1"
        assert found.best_score == pytest.approx(test["a"].mean())

    def test_a_gain_on_val_that_test_does_not_confirm_is_inconclusive(self) -> None:
        val = runs(seed=1, a=0.2)
        test = {"baseline": np.tile([0.0, 1.0], (3, 5)), "a": np.tile([1.0, 0.2], (3, 5))}
        found = conclude_from(evidence(val, test))
        assert found.verdict == "inconclusive"

    def test_a_planned_test_set_that_was_not_scored_keeps_it_unconfirmed(self) -> None:
        found = conclude_from(evidence(runs(a=0.2), about=metadata(splits=("val", "test"))))
        assert (found.verdict, found.metric) == ("promising_unconfirmed", "val/suite/pass@1")
        assert found.reasons == ["no run has a score on the test set test/suite"]

    def test_choosing_and_reporting_on_one_set_is_said(self) -> None:
        found = conclude_from(evidence(runs(a=0.2, b=0.0)))
        assert any("same scores that are reported" in threat for threat in found.threats)
        assert any("split: test" in step for step in found.next)

    def test_price_does_not_choose_the_best_run(self) -> None:
        given = with_arms(evidence(runs(a=0.0, b=0.2)), "b", tokens=10**9)
        given = with_arms(with_arms(given, "a", tokens=1), "baseline", tokens=1)
        assert conclude_from(given).best_arm == "b"

    def test_a_run_with_a_failed_seed_cannot_win_and_is_named(self) -> None:
        given = with_arm(evidence(runs(a=0.1, b=0.3)), "b", 2, status="failed", error="diverged", scorings={})
        found = conclude_from(given)
        assert found.best_arm == "a"
        assert found.not_scored == {"b__seed2": "it failed: diverged"}
        summary = found.run("b")
        assert summary is not None
        assert (summary.n_seeds, summary.failures) == (2, 1)
        assert "`b__seed2`" in found.next[0]

    def test_alone_such_a_run_is_at_most_promising(self) -> None:
        given = with_arm(evidence(runs(a=0.3)), "a", 2, status="failed", error="diverged", scorings={})
        assert conclude_from(given).verdict == "promising_unconfirmed"

    def test_an_unscored_arm_cannot_win(self) -> None:
        given = with_arm(evidence(runs(a=0.1, b=0.3)), "b", 0, unscored="the judge was down")
        assert conclude_from(given).best_arm == "a"

    def test_another_success_metric_chooses_the_best_run_and_leaves_the_claim_alone(self) -> None:
        given = evidence(runs(a=0.2, b=0.0), about=metadata({"claim": "x", "metric": "pass@1"}, "final_loss"))
        for run, loss in {"a": 0.2, "b": 0.9, "baseline": 0.5}.items():
            for seed in range(3):
                given = with_arm(given, run, seed, metrics={"final_loss": loss + seed / 100})
        found = conclude_from(given)
        assert (found.verdict, found.judged, found.best_arm) == ("supported", "a", "b")


class TestMetrics:
    def losses(self, mode: Any, a: float = 0.2) -> Evidence:
        about = Metadata.model_validate({"hypothesis": "it helps", "success_metric": mode})
        arms = {"baseline": 0.5, "a": a}
        given = [
            RunEvidence(
                run,
                [
                    ArmEvidence(f"{run}{seed}", run, seed, "completed", metrics={"final_loss": loss + seed / 100})
                    for seed in range(3)
                ],
            )
            for run, loss in arms.items()
        ]
        return replace(evidence({}, about=about), runs=given)

    def test_less_is_better_where_the_success_metric_says_so(self) -> None:
        found = conclude_from(self.losses({"name": "final_loss", "mode": "min"}))
        assert (found.verdict, found.best_arm, found.mode, found.metric) == ("supported", "a", "min", "final_loss")
        comparison = found.comparison("a")
        assert comparison is not None
        assert comparison.difference == pytest.approx(-0.3)
        assert any("no scores by task" in threat for threat in found.threats)

    def test_the_wrong_way_refutes(self) -> None:
        found = conclude_from(self.losses({"name": "final_loss", "mode": "min"}, a=0.9))
        assert (found.verdict, found.best_arm) == ("refuted", "baseline")

    def test_the_loss_is_what_is_left_to_look_at(self) -> None:
        given = self.losses({"name": "final_loss", "mode": "min"})
        found = conclude_from(replace(given, metadata=Metadata(hypothesis=None), registered_sha256=None))
        assert (found.metric, found.mode, found.best_arm) == ("final_loss", "min", "a")

    def test_a_sentence_without_a_metric_means_less_of_a_loss(self) -> None:
        given = self.losses({"name": "final_loss", "mode": "min"})
        about = Metadata(hypothesis="it helps")
        given = replace(given, metadata=about, registered_sha256=hypothesis_sha256(about))
        assert conclude_from(given).verdict == "supported"

    def test_a_metric_that_nothing_has_is_invalid(self) -> None:
        found = conclude_from(self.losses("no_such_metric"))
        assert (found.verdict, found.summary) == (
            "invalid",
            "Invalid: no run has a score for no_such_metric, first `baseline0`: it reports no finite no_such_metric.",
        )

    def test_a_full_name_chooses_the_set(self) -> None:
        about = metadata(metric="val/suite/pass@1", splits=("val", "test"))
        found = conclude_from(evidence(runs(a=0.2), runs(seed=3, a=0.0), about=about))
        assert (found.metric, found.verdict) == ("val/suite/pass@1", "supported")

    def test_seeds_that_agree_to_the_last_digit_tell_nothing(self) -> None:
        given = self.losses({"name": "final_loss", "mode": "min"})
        for run in ("a", "baseline"):
            given = with_arms(given, run, metrics={"final_loss": 0.1 if run == "a" else 0.5})
        found = conclude_from(given)
        assert found.verdict == "inconclusive"
        assert "seeds that differ" in found.reasons[0]

    def test_scores_on_training_rows_are_never_supported(self) -> None:
        given = self.losses("train_fit/exact_match")
        for run, score in {"a": 0.9, "baseline": 0.1}.items():
            for seed in range(3):
                given = with_arm(given, run, seed, metrics={"train_fit/exact_match": score + seed / 100})
        assert conclude_from(given).verdict == "promising_unconfirmed"

    def test_a_name_does_not_stand_for_scores_on_training_rows(self) -> None:
        given = with_arms(self.losses("exact_match"), "a", metrics={"train_fit/exact_match": 1.0})
        assert conclude_from(given).verdict == "invalid"


class TestProperties:
    def test_the_order_of_runs_and_seeds_changes_nothing(self) -> None:
        given = evidence(runs(a=0.05, b=0.02, c=-0.05))
        turned = replace(given, runs=[RunEvidence(run.name, run.arms[::-1]) for run in given.runs[::-1]])
        assert conclude_from(turned).to_json() == conclude_from(given).to_json()

    def test_the_order_of_tasks_changes_nothing(self) -> None:
        scores = runs(a=0.05, b=0.02)
        given = evidence(scores)
        for name, rows in scores.items():
            for seed, row in enumerate(rows):
                turned = scoring(VAL, row)
                score = turned.scores["pass@1"]
                backwards = replace(score, per_task=dict([*(score.per_task or {}).items()][::-1]))
                given = with_arm(given, name, seed, scorings={VAL: replace(turned, scores={"pass@1": backwards})})
        assert conclude_from(given).to_json() == conclude_from(evidence(scores)).to_json()

    def test_what_is_better_and_what_is_less_are_mirror_images(self) -> None:
        scores = runs(a=0.2, b=-0.1)
        found = conclude_from(evidence(scores))
        mirrored = conclude_from(
            evidence(
                {name: -rows for name, rows in scores.items()}, about=metadata(metric={"name": "pass@1", "mode": "min"})
            )
        )
        assert (mirrored.verdict, mirrored.best_arm) == (found.verdict, found.best_arm)
        for run in ("a", "b"):
            one, other = found.comparison(run), mirrored.comparison(run)
            assert one is not None
            assert other is not None
            assert other.difference == pytest.approx(-one.difference)
            assert other.low == pytest.approx(-(one.high or 0))

    def test_a_task_without_a_score_is_left_out_for_all_and_counted(self) -> None:
        scores = runs(a=0.2)
        scores["a"][1, 7] = np.nan
        found = conclude_from(evidence(scores))
        assert (found.verdict, found.runs[[run.name for run in found.runs].index("a")].n_tasks) == ("supported", 59)
        assert any(threat.endswith("some have no score: 1 task.") for threat in found.threats)

    def test_an_arm_that_answered_few_tasks_does_not_shrink_the_set_of_the_others(self) -> None:
        scores = runs(a=0.2, b=0.2)
        scores["b"][0, 10:] = np.nan
        found = conclude_from(evidence(scores))
        assert found.not_scored == {"b__seed0": "only 10 of 60 tasks have a score"}
        assert found.runs[[run.name for run in found.runs].index("a")].n_tasks == 60

    def test_a_seed_that_is_missing_in_one_run_widens_its_interval(self) -> None:
        scores = runs(a=0.2)
        full = conclude_from(evidence(scores)).comparison("a")
        fewer = conclude_from(evidence({"baseline": scores["baseline"], "a": scores["a"][:2]})).comparison("a")
        assert full is not None
        assert fewer is not None
        assert (fewer.high or 0) - (fewer.low or 0) > (full.high or 0) - (full.low or 0)

    def test_identical_runs_do_not_break_it(self) -> None:
        same = runs(a=0.0)["a"]
        found = conclude_from(evidence({"baseline": same, "a": same, "b": same}))
        assert found.verdict == "inconclusive"

    def test_runs_that_solve_nothing_do_not_break_it(self) -> None:
        nothing = np.zeros((3, 80))
        found = conclude_from(evidence({"baseline": nothing, "a": nothing}, about=claim(min_effect=0.05)))
        assert found.verdict == "inconclusive"
        assert "saturated" in found.summary

    def test_a_rate_stays_between_none_and_all(self) -> None:
        found = conclude_from(evidence({"baseline": np.zeros((3, 5)), "a": np.ones((3, 5))}))
        comparison, best = found.comparison("a"), found.run("a")
        assert comparison is not None
        assert best is not None
        assert (comparison.high, best.high) == (1.0, 1.0)
        assert (comparison.low or 0) < 1

    def test_a_single_task_leaves_the_seeds(self) -> None:
        found = conclude_from(evidence({"baseline": [[0.1], [0.2], [0.15]], "a": [[0.8], [0.9], [0.85]]}))
        assert found.verdict == "supported"
        assert any("only one task" in threat for threat in found.threats)

    def test_seeds_that_all_agree_leave_the_luck_of_the_tasks_to_be_seen(self) -> None:
        scores = {"baseline": [[0.0] * 48] * 3, "a": [[1.0] * 48] * 3}
        found = conclude_from(evidence(scores))
        assert found.verdict == "supported"
        assert 0.02 < (found.smallest_detectable or 0) < 0.2

    def test_comparing_several_runs_widens_the_intervals(self) -> None:
        scores = runs(a=0.05, b=0.0, c=0.0, d=0.0)
        alone = conclude_from(evidence({name: scores[name] for name in ("baseline", "a")})).comparison("a")
        among = conclude_from(evidence(scores)).comparison("a")
        assert alone is not None
        assert among is not None
        assert among.difference - (among.low or 0) > 1.1 * (alone.difference - (alone.low or 0))


class TestForm:
    def given(self) -> Conclusion:
        scored = evidence(runs(a=0.2, b=0.0), runs(seed=5, a=0.15, b=0.0), looks={"sha-test": Looks(4, 2, 9)})
        return conclude_from(with_arm(scored, "b", 1, status="failed", error="no | memory\nleft", scorings={}))

    def test_it_survives_the_way_through_json(self) -> None:
        found = self.given()
        again = Conclusion.from_dict(json.loads(found.to_json()))
        assert again.to_json() == found.to_json()
        assert again.sha256 == found.sha256

    def test_it_holds_no_time_and_nothing_that_is_not_json(self) -> None:
        text = self.given().to_json()
        assert "NaN" not in text
        assert "Infinity" not in text
        assert not {"time", "ts", "wall_s", "seconds"} & set(json.loads(text))

    def test_the_page_says_the_verdict_first_and_everything_else_after(self) -> None:
        page = as_markdown(self.given())
        lines = page.splitlines()
        assert lines[0] == "# exp-0000: supported"
        assert lines[2].startswith("Supported: `a` scores +0.1")
        for part in (
            "## test/suite/pass@1",
            "## Against baseline",
            "Noise floor",
            "Minimum detectable effect",
            "## Not scored",
        ):
            assert part in page
        assert "4 times in 2 earlier experiments" in page
        assert "no | memory left" in page
        assert "| **a** |" in page
        assert "| baseline (baseline) |" in page
        assert len(lines) < 60

    def test_evaluations_on_the_test_set_are_counted(self) -> None:
        assert self.given().looks == Looks(before=4, experiments=2, here=9)
        assert conclude_from(evidence(runs(a=0.2))).looks is None
