"""Conformance tests of a suite whose tasks another program runs and scores; subclass them and name a few tasks.

class TestMySuite(ForeignSuiteConformance):
    path = "my_suite:sums"
    right = {"t1": "2", "t2": "4"}
    wrong = "no"
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from ..data.task_source import build_task_source
from ..errors import EvsysError
from ..eval.benchmark import Benchmark, ScoreSettings
from ..eval.foreign_run import ForeignRun, find_suite
from ..eval.scored_model import Sampling, ScoredModel
from ..eval.scores import EvalResult
from ..history.foreign_runs import compare_foreign_runs
from ..rollouts.rollout import Message, Policy, Turn


class ForeignSuiteConformance:
    """Tests that every sample of every task has a score by task id, and that failures have none."""

    path: ClassVar[str]
    """Path of the tasks, as in a benchmark."""
    right: ClassVar[Mapping[str, str]] = {}
    """Task -> an answer with full reward."""
    wrong: ClassVar[str] = ""
    """An answer without reward."""
    samples: ClassVar[int] = 2
    """Samples per task; 1 for a suite that scores a task once."""

    def right_model(self) -> ScoredModel:
        """A model that solves every task."""
        return ScriptedModel("right", self.right)

    def wrong_model(self) -> ScoredModel:
        """A model that solves no task."""
        return ScriptedModel("wrong", dict.fromkeys(self.right, self.wrong))

    def failing_model(self, task: str) -> ScoredModel:
        """A model that fails on one task."""
        return ScriptedModel("failing", {name: answer for name, answer in self.right.items() if name != task})

    @pytest.fixture
    def benchmark(self) -> Benchmark:
        rows: list[Any] = [json.loads(json.dumps(row)) for row in build_task_source(self.path).make_rows()]
        return Benchmark.of(rows, name="suite")

    def test_it_owns_the_loop(self, benchmark: Benchmark) -> None:
        assert find_suite(benchmark.tasks) is not None

    def test_every_sample_of_every_task_is_scored_and_right_answers_earn_more(self, benchmark: Benchmark) -> None:
        right, wrong = (_score(benchmark, model, self.samples) for model in (self.right_model(), self.wrong_model()))
        expected = {(task.task_id, sample) for task in benchmark.tasks for sample in range(self.samples)}
        for result in (right, wrong):
            assert {(sample.task_id, sample.sample) for sample in result.predictions} == expected
            assert result.problem is None
        assert right.metrics["mean_reward"].value > wrong.metrics["mean_reward"].value
        pair = compare_foreign_runs(_as_run(wrong), _as_run(right))
        assert pair.n_tasks == len(benchmark.tasks)
        assert pair.difference == pytest.approx(right.metrics["mean_reward"].value - wrong.metrics["mean_reward"].value)

    def test_the_same_model_gets_the_same_scores(self, benchmark: Benchmark) -> None:
        first, second = (_score(benchmark, self.right_model(), 1) for _ in range(2))
        assert [sample.reward for sample in first.predictions] == [sample.reward for sample in second.predictions]

    def test_a_model_that_fails_on_a_task_has_no_score_for_it_and_no_zero(self, benchmark: Benchmark) -> None:
        broken = benchmark.tasks[0].task_id
        try:
            result = _score(benchmark, self.failing_model(broken), 1)
        except EvsysError:
            return  # the whole scoring failed, which is no zero either
        by_task = {sample.task_id: sample for sample in result.predictions}
        assert by_task[broken].reward is None
        assert by_task[broken].error
        assert all(sample.reward is not None for name, sample in by_task.items() if name != broken)


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """A model with fixed answers by task; other tasks raise an error."""

    ref: str
    answers: Mapping[str, str]

    def policy(self, sampling: Sampling, task_id: str, sample: int) -> Policy:
        return _Scripted(task_id, self.answers)


@dataclass(frozen=True, slots=True)
class _Scripted:
    task: str
    answers: Mapping[str, str]

    async def act(self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None) -> Turn:
        if self.task not in self.answers:
            raise RuntimeError("the model cannot be asked")
        return Turn({"role": "assistant", "content": self.answers[self.task]}, input_tokens=1, output_tokens=1)


def _score(benchmark: Benchmark, model: ScoredModel, samples: int) -> EvalResult:
    return benchmark.score(model, ScoreSettings(samples=samples, metrics=("mean_reward",)))


def _as_run(result: EvalResult) -> ForeignRun:
    return ForeignRun("suite", result.benchmark, result.model, "success", list(result.predictions))
