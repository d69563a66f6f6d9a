"""Kinds of claim, populations and attempts: what a verdict must take into account beside the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evsys_sdk.config import Metadata
from evsys_sdk.experiment.conclusion.evidence import ArmEvidence, Evidence, RunEvidence, Score, ScoredSet
from evsys_sdk.experiment.conclusion.markdown import as_markdown
from evsys_sdk.experiment.conclusion.verdict import conclude_from

from .conclusion_records import VAL, evidence, metadata
from .test_conclusion import runs, with_arm, with_arms


def claim(**fields: Any) -> Metadata:
    return metadata({"claim": "it is so", **fields})


def with_scorings(given: Evidence, **changes: Any) -> Evidence:
    """The evidence with every scoring changed."""
    changed = [
        replace(
            run,
            arms=[
                replace(arm, scorings={key: replace(one, **changes) for key, one in arm.scorings.items()})
                for arm in run.arms
            ],
        )
        for run in given.runs
    ]
    return replace(given, runs=changed)


class TestKinds:
    def test_a_level_that_the_interval_lies_above_is_reached(self) -> None:
        given = runs(a=0.3)
        found = conclude_from(evidence(given, about=claim(kind="at_least", level=0.6)))
        assert (found.verdict, found.judged, found.baseline) == ("supported", "a", "0.6")
        assert found.summary.startswith("Supported: `a` scores 0.701 [0.6")
        assert found.summary.endswith("(at least 0.600 was claimed).")
        assert conclude_from(evidence(given, about=claim(kind="at_least", level=0.68))).verdict == "inconclusive"
        assert conclude_from(evidence(given, about=claim(kind="at_least", level=0.9))).verdict == "refuted"

    def test_a_level_needs_no_baseline(self) -> None:
        given = {"a": runs(a=0.3)["a"]}
        assert conclude_from(evidence(given, about=claim(kind="at_least", level=0.6))).verdict == "supported"

    def test_a_level_that_is_not_to_be_exceeded(self) -> None:
        about = claim(kind="at_least", level=0.6, direction="decrease")
        assert conclude_from(evidence({"a": runs()["baseline"]}, about=about)).verdict == "supported"

    def test_not_worse_is_shown_by_an_interval_that_ends_before_the_margin(self) -> None:
        given = runs(a=0.0)
        found = conclude_from(evidence(given, about=claim(kind="not_worse", margin=0.1)))
        assert found.verdict == "supported"
        assert "worse by less than 0.100 was claimed" in found.summary
        assert conclude_from(evidence(given, about=claim(kind="not_worse", margin=0.005))).verdict == "inconclusive"
        worse = evidence(runs(a=-0.2), about=claim(kind="not_worse", margin=0.05))
        assert conclude_from(worse).verdict == "refuted"

    def test_runs_that_nothing_can_tell_apart_do_not_show_that_neither_is_worse(self) -> None:
        same = np.ones((3, 200))
        found = conclude_from(evidence({"baseline": same, "a": same}, about=claim(kind="not_worse", margin=0.1)))
        assert found.verdict == "inconclusive"
        assert found.reasons[0].startswith("saturated: every run scores 1.000 on every task")

    def steps(self, gains: dict[int, float], **fields: Any) -> Evidence:
        names: dict[str, Any] = {f"s{value}": gain for value, gain in gains.items()}
        scores = runs(**names)
        about = claim(kind="trend", axis="algorithm.params.max_steps", **fields)
        given = evidence({name: scores[name] for name in names}, about=about)
        settings = [{"algorithm.params.max_steps": value} for value in gains]
        return replace(given, runs=[replace(run, settings=one) for run, one in zip(given.runs, settings, strict=True)])

    def test_a_trend_is_the_change_of_a_line_from_end_to_end(self) -> None:
        found = conclude_from(self.steps({10: 0.0, 20: 0.1, 40: 0.3}))
        assert found.verdict == "supported"
        assert found.trend is not None
        assert found.trend.change == pytest.approx(0.3, abs=0.02)
        assert (found.trend.first, found.trend.last) == (10, 40)
        assert found.comparisons == []

    def test_a_trend_that_goes_the_other_way_is_refuted(self) -> None:
        assert conclude_from(self.steps({10: 0.3, 20: 0.15, 40: 0.0})).verdict == "refuted"
        assert conclude_from(self.steps({10: 0.3, 20: 0.15, 40: 0.0}, direction="decrease")).verdict == "supported"

    def test_a_flat_line_is_no_trend(self) -> None:
        assert conclude_from(self.steps({10: 0.0, 20: 0.0, 40: 0.0})).verdict == "inconclusive"
        assert conclude_from(self.steps({10: 0.0, 20: 0.0, 40: 0.0}, min_effect=0.2)).verdict == "refuted"

    def test_a_log_scale_weighs_ratios(self) -> None:
        gains = {1: 0.0, 10: 0.15, 100: 0.3}
        log, linear = (conclude_from(self.steps(gains, scale=scale)).trend for scale in ("log", "linear"))
        assert log is not None
        assert linear is not None
        assert log.change == pytest.approx(0.3, abs=0.03)
        assert linear.change < log.change

    def test_what_changes_beside_the_axis_is_named(self) -> None:
        given = self.steps({10: 0.0, 20: 0.1, 40: 0.3})
        assert not any("differ in" in threat for threat in conclude_from(given).threats)
        more = [replace(run, settings={**run.settings, "lr": at}) for at, run in enumerate(given.runs)]
        threats = conclude_from(replace(given, runs=more)).threats
        assert "The runs differ in `lr`: which of it matters is unknown." in threats

    def test_one_seed_shows_no_trend(self) -> None:
        given = self.steps({10: 0.0, 20: 0.1, 40: 0.3})
        single = replace(given, runs=[replace(run, arms=run.arms[:1]) for run in given.runs])
        assert conclude_from(single).verdict == "promising_unconfirmed"


class TestAnyRunCounts:
    def test_only_the_run_that_validation_selected_is_tested(self) -> None:
        val, test = runs(seed=1, a=0.21, b=0.2), runs(seed=2, a=0.0, b=0.3)
        found = conclude_from(evidence(val, test))
        assert (found.verdict, found.judged) == ("inconclusive", "a")

    def test_the_run_that_validation_prefers_has_the_narrower_interval(self) -> None:
        names: dict[str, Any] = {f"r{number}": 0.0 for number in range(8)}
        found = conclude_from(evidence(runs(seed=1, a=0.2, **names), runs(seed=2, a=0.2, **names)))
        widths = {one.run: (one.high or 0) - (one.low or 0) for one in found.comparisons}
        assert widths["a"] < min(width for name, width in widths.items() if name != "a")


class TestPopulation:
    def clustered(self, seed: int = 0, **more: Any) -> Evidence:
        """Twelve documents of ten tasks; a recipe suits a document or does not."""
        draw = np.random.default_rng(seed)
        ease = draw.uniform(0.2, 0.6, 120)
        suits = np.repeat(draw.normal(0.02, 0.1, 12), 10)
        grid = {
            name: np.clip(ease + (suits if name == "a" else 0) + draw.normal(0, 0.05, (3, 120)), 0, 1)
            for name in ("baseline", "a")
        }
        return evidence(grid, **more)

    def test_tasks_of_one_document_are_no_independent_witnesses(self) -> None:
        given = self.clustered()
        names = {f"t{number}": f"document {number // 10}" for number in range(120)}
        alone, together = conclude_from(given), conclude_from(with_scorings(given, clusters=names))
        wide, narrow = ((one.comparisons[0].high or 0) - (one.comparisons[0].low or 0) for one in (together, alone))
        assert wide > 2 * narrow
        assert together.population is not None
        assert together.population.n_clusters == 12
        assert "in 12 clusters" in as_markdown(together)

    def test_one_cluster_supports_nothing(self) -> None:
        given = with_scorings(evidence(runs(a=0.3)), clusters={f"t{number}": "one" for number in range(60)})
        found = conclude_from(given)
        assert found.verdict == "promising_unconfirmed"
        assert any("one cluster" in reason for reason in found.reasons)

    def lossy(self, share: float, gain: float, samples: int = 8) -> Evidence:
        """A candidate whose wrong samples get lost, each with the same chance."""
        draw = np.random.default_rng(0)
        ease = draw.uniform(0.3, 0.7, 100)
        made: list[RunEvidence] = []
        for name, more in {"baseline": 0.0, "a": gain}.items():
            arms: list[ArmEvidence] = []
            for seed in range(3):
                right = draw.binomial(samples, np.clip(ease + more, 0, 1))
                gone = draw.binomial(samples - right, share if name == "a" else 0.0)
                rows = {
                    f"t{at}": [1.0] * int(r) + [0.0] * int(samples - r - g) + [None] * int(g)
                    for at, (r, g) in enumerate(zip(right, gone, strict=True))
                }
                seen = {task: [one for one in row if one is not None] for task, row in rows.items()}
                score = Score(0.5, {task: float(np.mean(row)) for task, row in seen.items() if row})
                one = ScoredSet(VAL, 10, "sha", {"pass@1": score}, int(gone.sum()), samples=rows, n_samples=800)
                arms.append(ArmEvidence(f"{name}{seed}", name, seed, "completed", scorings={VAL: one}))
            made.append(RunEvidence(name, arms))
        return replace(evidence({}), runs=made)

    def test_answers_that_got_lost_may_all_have_been_wrong(self) -> None:
        found = conclude_from(self.lossy(0.4, 0.0))
        comparison = found.comparisons[0]
        assert comparison.difference > 0.05
        assert (comparison.low or 0) < 0
        assert (comparison.p or 0) > 0.05
        assert found.verdict == "inconclusive"
        assert any("Failed on our side" in threat for threat in found.threats)

    def test_the_interval_of_a_score_reaches_over_all_that_is_missing(self) -> None:
        whole, lossy = (conclude_from(self.lossy(lost, 0.0)) for lost in (0.0, 0.4))
        for found in (whole, lossy):
            assert all(run.low is not None and run.high is not None for run in found.runs)
        # All of what is missing was wrong, and the run is no better than the baseline: so the truth is zero.
        assert (lossy.comparisons[0].low or 0) <= 0 <= (lossy.comparisons[0].high or 0)
        run = lossy.run("a")
        truth = whole.run("a")
        assert run is not None
        assert truth is not None
        assert run.mean is not None
        assert truth.mean is not None
        assert (run.low or 0) <= truth.mean < run.mean < (run.high or 0)

    def test_a_difference_that_may_go_either_way_is_no_news(self) -> None:
        comparison = conclude_from(self.lossy(0.6, -0.05)).comparisons[0]
        assert comparison.p == 1.0

    def test_a_gain_that_is_larger_than_all_that_is_missing_is_supported(self) -> None:
        assert conclude_from(self.lossy(0.05, 0.2)).verdict == "supported"

    def test_a_baseline_that_lost_seeds_is_no_baseline_to_beat(self) -> None:
        given = with_arm(evidence(runs(a=0.3)), "baseline", 2, status="failed", error="boom", scorings={})
        found = conclude_from(given)
        assert found.verdict == "promising_unconfirmed"
        assert "of `baseline`" in found.reasons[0]

    def test_tasks_that_the_baseline_lost_may_have_been_its_best(self) -> None:
        scores = runs(a=0.06)
        scores["baseline"][:, np.argsort(-scores["baseline"].mean(axis=0))[:9]] = np.nan
        found = conclude_from(evidence(scores))
        assert found.verdict != "supported"


class TestExtremes:
    def test_a_baseline_near_the_top_leaves_nothing_to_see(self) -> None:
        draw = np.random.default_rng(0)
        high = {name: (draw.random((3, 40)) < 0.97).astype(float) for name in ("baseline", "a")}
        found = conclude_from(evidence(high, about=claim(min_effect=0.05)))
        assert any("harder tasks" in step for step in found.next)
        assert not any("bigger change" in step for step in found.next)

    def test_two_seeds_that_agree_by_chance_are_no_noise_floor_of_zero(self) -> None:
        row = np.tile([0.0, 1.0], 20)
        found = conclude_from(evidence({name: np.stack([row, 1 - row]) for name in ("baseline", "a")}))
        assert found.noise_floor is not None
        assert found.noise_floor.difference > 0.05
        assert "up to 0.000" not in as_markdown(found)

    @pytest.mark.parametrize(
        ("stopped", "limit"),
        [("budget: tokens 900 of 800", "budget (tokens 900 of 800)"), ("budget: deadline, 0 s left", "deadline")],
    )
    def test_what_a_limit_ended_before_a_score_is_not_invalid(self, stopped: str, limit: str) -> None:
        given = replace(evidence(runs(a=0.2)), stopped=stopped)
        for name in ("a", "baseline"):
            given = with_arms(given, name, status="cancelled", scorings={})
        found = conclude_from(given)
        assert found.verdict == "inconclusive"
        assert found.summary == f"Inconclusive: stopped by the {limit} before a run was scored."

    def test_nothing_scored_at_all_is_said_plainly(self) -> None:
        given = evidence(runs(a=0.2))
        for name in ("a", "baseline"):
            given = with_arms(given, name, status="failed", error="no memory", scorings={})
        found = conclude_from(given)
        assert found.summary == "Invalid: no run has a score for pass@1, first `baseline__seed0`: it failed: no memory."
        assert len(found.not_scored) == 6
        assert found.threats == []


class TestAttempts:
    def test_a_later_attempt_needs_more(self) -> None:
        given = evidence(runs(a=0.1))
        first, fifth = (conclude_from(replace(given, attempt=number)) for number in (1, 5))
        assert first.error_rate == pytest.approx(0.015)
        assert fifth.error_rate == pytest.approx(0.005 * 0.6079 / 16, abs=1e-6)
        assert (fifth.comparisons[0].low or 0) < (first.comparisons[0].low or 0)
        assert "Trial 5" in as_markdown(fifth)

    def test_a_look_before_the_last_seed_needs_far_more(self) -> None:
        given = evidence(runs(seeds=3, a=0.1))
        early = conclude_from(replace(given, interim=(3, 6, 9)))
        last = conclude_from(replace(given, interim=(1, 2, 3)))
        once = conclude_from(given)
        assert early.sequential is not None
        assert last.sequential is not None
        assert early.sequential.error < 0.001 < last.sequential.error < (once.error_rate or 0)
        assert early.error_rate == last.error_rate == once.error_rate  # of all looks together

    def test_the_parent_is_the_baseline_where_no_other_is_given(self) -> None:
        scores = runs(a=0.3)
        parent = replace(evidence({"old": scores["baseline"]}).runs[0], name="old")
        given = evidence({"a": scores["a"]}, parent=parent)
        found = conclude_from(given)
        assert (found.verdict, found.baseline, found.best_arm) == ("supported", "old", "a")
        assert found.baseline_is == "this experiment continues from it"
        named = evidence({"baseline": scores["baseline"], "a": scores["a"]}, parent=parent)
        assert conclude_from(named).baseline == "baseline"


class TestWords:
    def test_the_page_has_what_differed_and_what_was_measured(self) -> None:
        given = evidence(runs(a=0.2), deviations=["It was resumed once."], identity={"model": "tiny at 1234"})
        given = with_arms(with_arms(given, "a", tokens=144), "baseline", tokens=100)
        settings = {"baseline": {"lr": 0.1, "rank": 8}, "a": {"lr": 0.2, "rank": 8}}
        given = replace(given, runs=[replace(run, settings=settings[run.name]) for run in given.runs])
        page = as_markdown(conclude_from(given))
        assert "- `lr`: 0.2 in `a`, 0.1 in `baseline`" in page
        assert "rank" not in page
        assert "Scored on 60 tasks of tasks.jsonl" in page
        assert "Seeds: 0, 1, 2." in page
        assert "It was resumed once." in page
        assert "model: tiny at 1234" in page
        assert "False positive rate: at most 2 % (equally noisy runs)." in page

    def test_several_changes_at_once_are_named_as_a_threat(self) -> None:
        given = evidence(runs(a=0.2))
        settings = {"baseline": {"lr": 0.1, "steps": 8}, "a": {"lr": 0.2, "steps": 80}}
        given = replace(given, runs=[replace(run, settings=settings[run.name]) for run in given.runs])
        assert "The runs differ in `lr`, `steps`: which of it matters is unknown." in (conclude_from(given).threats)

    def test_a_design_that_is_too_weak_is_told_so(self) -> None:
        draw = np.random.default_rng(5)
        scores = {name: np.clip(draw.normal(0.5, 0.3, (3, 12)), 0, 1) for name in ("baseline", "a")}
        scores["a"] += scores["baseline"].mean() - scores["a"].mean()
        found = conclude_from(evidence(scores, about=claim(min_effect=0.02)))
        assert found.verdict == "inconclusive"
        assert any("80 % power" in step or "add tasks" in step for step in found.next)

    def test_a_conclusion_of_the_first_form_can_still_be_read(self) -> None:
        from evsys_sdk.experiment.conclusion import Conclusion

        stored = conclude_from(evidence(runs(a=0.2))).to_dict()
        new = {
            "rule",
            "error_rate",
            "attempt",
            "population",
            "trend",
            "identity",
            "deviations",
        }
        old = {key: value for key, value in stored.items() if key not in new} | {"schema_version": 1}
        assert Conclusion.from_dict(old).verdict == "supported"
