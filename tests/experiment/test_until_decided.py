"""`until: decided`: seeds look by look, stopped when the claim is decided or lost, with the error rate of one look."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk import ConfigError, ExperimentConfig, RunConfig, RunResult
from evsys_sdk.config.experiment import plan_looks
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.arms.arm import Arm, expand_arms, first_arms
from evsys_sdk.experiment.arms.results import ArmResult
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.experiment.conclusion import Conclusion, read_stored_conclusion
from evsys_sdk.experiment.conclusion.evidence import Evidence
from evsys_sdk.experiment.conclusion.interim import judge_interim
from evsys_sdk.experiment.conclusion.markdown import as_markdown
from evsys_sdk.experiment.conclusion.verdict import conclude_from
from evsys_sdk.experiment.plan.plan import plan_experiment
from evsys_sdk.experiment.search.decided import UntilDecided
from evsys_sdk.experiment.statistics.attempts import FIRST_ERROR, look_errors
from evsys_sdk.history.detail import read_detail
from evsys_sdk.history.views.show import show_data, show_page
from evsys_sdk.record.events import Journal, Kind
from evsys_sdk.record.reader import ExperimentRecord

from .conclusion_records import evidence

type Config = Callable[..., ExperimentConfig]
LOOKS = (4, 7, 10)


def scores(seeds: int, gain: float, *, lost: int = 0) -> dict[str, np.ndarray]:
    """Two runs of 10 seeds on 60 tasks, of which the first `seeds` are there; `lost` seeds of the baseline failed."""
    draw = np.random.default_rng(3)
    ease = draw.uniform(0.3, 0.7, 60)
    found: dict[str, np.ndarray] = {}
    for name, more in {"baseline": 0.0, "a": gain}.items():
        luck = draw.normal(0, 0.02, (10, 1))
        found[name] = (draw.binomial(4, np.clip(ease + more + luck, 0, 1)) / 4)[: seeds - (lost if more == 0 else 0)]
    return found


def looked(seeds: int, gain: float, **more: Any) -> Conclusion:
    return conclude_from(evidence(scores(seeds, gain), interim=LOOKS, **more))


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"metadata": {}}, "no claim to decide"),
            ({"n_repeats": 2}, "seeds that can be saved"),
            ({"looks": [1, 5]}, "grow from 2 seeds"),
            ({"looks": [3, 4]}, "to n_repeats, which is 5"),
            ({"looks": [4, 3, 5]}, "grow from 2"),
            ({"until": "all", "looks": [2, 5]}, "only `until: decided`"),
            ({"search": {"kind": "random", "n": 1}}, "a search decides"),
            (
                {"metadata": {"hypothesis": {"claim": "c", "baseline": "r", "baseline_repeats": 9}}},
                "same number of seeds",
            ),
        ],
    )
    def test_what_cannot_be_stopped_early_is_refused(self, config: Config, changes: dict[str, Any], said: str) -> None:
        given = {"until": "decided", "n_repeats": 5, "metadata": {"hypothesis": "it helps"}, **changes}
        with pytest.raises(ValueError, match=said):
            config(**given)

    def test_looks_begin_at_a_third_and_are_five_at_most(self) -> None:
        assert [plan_looks(seeds) for seeds in (3, 5, 10, 20)] == [
            [2, 3],
            [2, 3, 4, 5],
            [4, 5, 7, 8, 10],
            [7, 10, 13, 16, 20],
        ]

    def test_the_arms_up_to_the_first_look_are_trained_in_any_case(self, config: Config) -> None:
        given = config(until="decided", n_repeats=9, looks=[3, 9], metadata={"hypothesis": "it helps"})
        assert [arm.name for arm in first_arms(given)] == ["r__seed42", "r__seed43", "r__seed44"]
        assert len(expand_arms(given)) == 9


class TestAllocation:
    @staticmethod
    def arm(run: str, repeat: int) -> Arm:
        given = {"name": f"{run}-{repeat}", "data": {"path": "x"}, "model": {"name": "m"}, "algorithm": {"kind": "sft"}}
        return Arm(RunConfig.model_validate(given), repeat, run)

    def play(self, ends_at: int, fails: Callable[[Arm], bool] = lambda arm: False) -> tuple[int, list[Any]]:
        """Arms that were trained, and what was noted."""
        arms = [self.arm(run, repeat) for run in "ab" for repeat in range(10)]
        judged: list[int] = []

        def judge(trained: Sequence[Arm]) -> dict[str, Any]:
            judged.append(len(trained))
            return {"verdict": "inconclusive", "ends": len(trained) >= ends_at, "why": "because", "error": 0.01}

        allocation = UntilDecided(arms, LOOKS, judge)
        results: list[ArmResult] = []
        while True:
            decision = allocation.decide(results)
            assert allocation.decide(results) is decision
            new = [arm for arm in decision.arms if arm.name not in {done.name for done in results}]
            if not new:
                assert len(judged) == len(decision.notes)
                return len(results), list(decision.notes)
            for arm in new:
                assert allocation.decide(results).arms == decision.arms  # not before all of them have ended
                status = "failed" if fails(arm) else "completed"
                results.append(ArmResult(arm, RunResult(arm.name, status)))

    def test_seeds_are_added_until_a_look_ends_it(self) -> None:
        trained, notes = self.play(ends_at=14)
        assert trained == 14
        assert [(note["look"], note["seeds"], note["ends"]) for note in notes] == [(1, 4, False), (2, 7, True)]

    def test_the_last_seeds_need_no_look(self) -> None:
        trained, notes = self.play(ends_at=99)
        assert trained == 20
        assert [note["look"] for note in notes] == [1, 2]

    def test_a_failed_arm_is_looked_at_like_any_other(self) -> None:
        assert self.play(ends_at=8, fails=lambda arm: arm.repeat == 1)[0] == 8


class TestLook:
    def test_a_clear_effect_is_decided_early(self) -> None:
        found = looked(4, 0.3)
        assert (found.verdict, judge_interim(found)["ends"]) == ("supported", True)
        assert found.sequential is not None
        assert (found.sequential.look, found.sequential.outcome) == (1, "decided")
        assert "Analysis 1 of 3, with 4 seeds a run, tested at" in as_markdown(found)

    def test_each_look_is_tested_at_its_share(self) -> None:
        levels = look_errors((0.4, 0.7, 1.0), FIRST_ERROR)
        for seeds, level in zip(LOOKS, levels, strict=True):
            found = looked(seeds, 0.0, attempt=1)
            assert found.sequential is not None
            assert found.sequential.error == pytest.approx(level)
            assert found.error_rate == FIRST_ERROR

    def test_an_early_interval_is_wider_than_that_of_a_plain_experiment(self) -> None:
        early, plain = looked(4, 0.05), conclude_from(evidence(scores(4, 0.05)))
        assert (early.comparisons[0].low or 0) < (plain.comparisons[0].low or 0)

    def test_a_loss_is_given_up(self) -> None:
        found = looked(4, -0.03)
        look = judge_interim(found)
        assert (found.verdict, look["ends"]) == ("inconclusive", True)
        assert look["chance"] is not None
        assert look["chance"] < 0.05
        assert "Give this claim up" in found.next[0]

    def test_what_may_still_be_decided_goes_on(self) -> None:
        look = judge_interim(looked(4, 0.08))
        assert not look["ends"]
        assert look["chance"] is not None
        assert look["chance"] > 0.05

    def test_a_broken_baseline_ends_it_until_it_is_repaired(self) -> None:
        given = evidence(scores(4, 0.05), interim=LOOKS)
        broken = [replace(arm, status="failed", error="boom", scorings={}) for arm in given.runs[0].arms[:1]]
        runs = [replace(given.runs[0], arms=[*broken, *given.runs[0].arms[1:]]), given.runs[1]]
        found = judge_interim(conclude_from(replace(given, runs=runs)))
        assert found["ends"]
        assert "repair them" in found["why"]

    def test_without_any_score_there_is_nothing_to_go_on_for(self) -> None:
        given = evidence(scores(4, 0.05), interim=LOOKS)
        failed = [
            replace(run, arms=[replace(arm, status="failed", error="boom", scorings={}) for arm in run.arms])
            for run in given.runs
        ]
        look = judge_interim(conclude_from(replace(given, runs=failed)))
        assert (look["verdict"], look["ends"]) == ("invalid", True)
        assert "boom" in look["why"]

    def test_what_was_broken_off_between_two_looks_is_judged_as_the_earlier_one(self) -> None:
        found = looked(6, 0.3)
        assert found.sequential is not None
        assert (found.sequential.look, found.sequential.outcome) == (1, "aborted")

    def test_a_look_is_reached_when_every_run_has_had_its_seeds(self) -> None:
        given = evidence(scores(6, 0.3), interim=(2, 4, 6, 10))
        first, *others = given.runs
        stopped = replace(given, runs=[first, *(replace(run, arms=run.arms[:2]) for run in others)])
        found = conclude_from(stopped)
        assert found.sequential is not None
        assert found.sequential.look == 1

    def test_the_effect_that_can_be_seen_is_that_of_all_seeds(self) -> None:
        few, all_ = looked(4, 0.0), looked(10, 0.0)
        assert few.smallest_detectable == pytest.approx(all_.smallest_detectable, rel=0.35)
        plain = conclude_from(evidence(scores(4, 0.0))).smallest_detectable
        assert (few.smallest_detectable or 1) < (plain or 0)


@pytest.fixture
def claim(config: Config, tmp_path: Path) -> Callable[..., ExperimentConfig]:
    """Forty steps against two, on words that are learned by then."""
    verifier = {"kind": "in_process", "fn_name": "exact_match"}
    words = [f"{first}{second}" for first in "abcdef" for second in "uvwxyz"]
    tasks = [
        {"task_id": word, "instruction": word, "verifier": {**verifier, "expected": word[:1].upper()}} for word in words
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")
    rows = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word[:1].upper()}]}
        for word in words
    ]

    def make(better: int = 40, **more: Any) -> ExperimentConfig:
        short, long = (
            {"kind": "sft", "params": {"max_steps": steps, "batch_size": 12, "learning_rate": 0.03}}
            for steps in (2, better)
        )
        entry = {"name": "t", "path": str(tmp_path / "tasks.jsonl"), "split": "test", "max_tokens": 2}
        data = {"data": {"source_kind": "in_memory", "rows": rows}}
        return config(
            runs=[
                {"name": "short", "algorithm": short, **data},
                {"name": "long", "algorithm": long, **data},
            ],
            n_repeats=6,
            until="decided",
            looks=[4, 5, 6],
            metadata={
                "hypothesis": {"claim": "longer is better", "metric": "pass@1", "baseline": "short"},
                "benchmark": entry,
            },
            **more,
        )

    return make


def trained(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if (path / "run_result.json").is_file())


@pytest.mark.slow
class TestExperiment:
    def test_it_ends_with_the_look_that_decides(self, claim: Config) -> None:
        result = Experiment(claim()).run()
        assert (result.exit_code, result.status) == (0, "completed")
        assert len(trained(result.path)) == 8
        record = ExperimentRecord(result.path)
        assert record.start.get("looks") == [4, 5, 6]
        assert [(look["look"], look["verdict"], look["ends"]) for look in record.looks] == [(1, "supported", True)]
        found = read_stored_conclusion(result.path)
        assert found is not None
        assert found.sequential is not None
        assert (found.verdict, found.sequential.outcome) == ("supported", "decided")
        assert not found.not_scored
        checks = {check.name: check.state for check in audit_experiment(result.path).checks}
        assert (checks["looks"], checks["arms"], checks["chain"]) == ("ok", "ok", "ok")
        detail = read_detail(result.path)
        [told] = show_data(detail)["decisions"]
        assert (told["look"], told["of"], told["seeds"], told["ends"]) == (1, 3, 4, True)
        assert "look 1 of 3, 4 seeds a run: Supported" in " ".join(show_page(detail).split())

    def test_broken_off_between_two_looks_it_goes_on_to_the_end(self, claim: Config) -> None:
        total = plan_experiment(claim(better=10)).total
        most = round(0.75 * (total.tokens_trained + total.tokens_sampled))  # two thirds of it are the first look
        broken = Experiment(claim(better=10, budget={"tokens": most})).run()
        assert (broken.exit_code, broken.status) == (3, "budget")
        assert [look["ends"] for look in ExperimentRecord(broken.path).looks] == [False]
        stopped = read_stored_conclusion(broken.path)
        assert stopped is not None
        assert stopped.sequential is not None
        assert stopped.sequential.outcome == "aborted"
        resumed = Experiment(claim(better=10)).run(resume=True)
        assert resumed.status == "completed"
        assert len(trained(resumed.path)) == 12
        looks = ExperimentRecord(resumed.path).looks
        assert [(look["look"], look["ends"]) for look in looks] == [(1, False), (2, False)]  # none is noted twice
        found = read_stored_conclusion(resumed.path)
        assert found is not None
        assert found.sequential is not None
        assert (found.attempt, found.sequential.look, found.sequential.outcome) == (1, 3, "all seeds were needed")

    def test_an_arm_that_is_added_after_the_end_is_flagged(self, claim: Config) -> None:
        result = Experiment(claim()).run()
        with Journal.of(result.path) as journal:
            journal.append(Kind.ARM_STARTED, arm="long__seed46", arm_id="x", seed=46, attempt=1)
        report = audit_experiment(result.path)
        [check] = [check for check in report.checks if check.name == "looks"]
        assert check.state == "flagged"
        assert "after look 1 had ended" in check.evidence[0]

    def test_looks_that_were_changed_afterwards_are_flagged(self, claim: Config) -> None:
        result = Experiment(claim()).run()
        file = result.path / "config.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**content, "until": "all", "looks": None}), encoding="utf-8")
        found = read_stored_conclusion(result.path)
        assert found is not None
        assert "config" in [check.name for check in audit_experiment(result.path).flags]
        with pytest.raises(ConfigError, match="until"):
            Experiment(claim()).run(resume=True)

    def test_a_plan_says_what_it_takes_at_most(self, claim: Config) -> None:
        plan = plan_experiment(claim())
        assert plan.n_arms == 12
        assert plan.sensitivity is not None
        assert plan.sensitivity.looks == (4, 5, 6)
        assert "Interim analyses after 4, 5 and 6 seeds" in plan.sensitivity.rule


def test_evidence_without_looks_says_nothing_of_them() -> None:
    given: Evidence = evidence(scores(4, 0.1))
    assert conclude_from(given).sequential is None
