"""Tasks that another program solves and scores, with a small program of our own in its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config.metadata import BenchmarkEntry, Metadata
from evsys_sdk.data.task_source import locate_rows
from evsys_sdk.errors import DataError
from evsys_sdk.eval.benchmark import Benchmark, ScoreSettings
from evsys_sdk.eval.foreign_run import ForeignRun
from evsys_sdk.eval.predictions import Prediction
from evsys_sdk.registry import register_verifier, registry
from evsys_sdk.testing.foreign_suite_conformance import ForeignSuiteConformance, ScriptedModel


class Params:
    name = "doubling"
    version = "1"

    def __init__(self, subject: str = "", knobs: dict[str, Any] | None = None) -> None:
        self.subject = subject

    def make_rows(self) -> Iterator[dict[str, Any]]:
        for n in (1, 2, 3):
            verifier = {"kind": "in_process", "fn_name": "doubling", "params": {"subject": self.subject}}
            yield {"task_id": str(n), "instruction": f"{n}+{n}=", "verifier": verifier}

    def verify(self, *, completion: str) -> float:
        raise NotImplementedError

    async def run_tasks(self, model: Any, sampling: Any, tasks: Any, *, samples: int, **_: Any) -> ForeignRun:
        predictions: list[Prediction] = []
        for task in tasks:
            for sample in range(samples):
                try:
                    turn = await model.policy(sampling, task.task_id, sample).act([])
                except RuntimeError as error:
                    predictions.append(Prediction(task.task_id, sample, "infra", None, error=str(error)))
                    continue
                right = turn.message["content"] == str(2 * int(task.task_id))
                predictions.append(Prediction(task.task_id, sample, "ok", float(right)))
        asked.append([task.task_id for task in tasks])
        return ForeignRun("doubler", "doubling", model.ref, "success", predictions)


asked: list[list[str]] = []


@pytest.fixture(autouse=True)
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / ".evsys").mkdir()
    monkeypatch.chdir(tmp_path)
    asked.clear()
    with registry("verifier").isolated():
        register_verifier("doubling")(Params)
        yield


class TestDoubling(ForeignSuiteConformance):
    path = "doubling:sums"
    right = {"1": "2", "2": "4", "3": "6"}
    wrong = "no"


def test_a_scoring_continues_with_what_failed(tmp_path: Path) -> None:
    benchmark = Benchmark.load(path=locate_rows("doubling:sums"))
    journal = tmp_path / "journal.jsonl"
    settings = ScoreSettings(metrics=("mean_reward",))
    first = benchmark.score(ScriptedModel("m", {"1": "2", "3": "0"}), settings, journal=journal)
    assert [prediction.reward for prediction in first.predictions] == [1, None, 0]
    second = benchmark.score(ScriptedModel("m", {"2": "4"}), settings, journal=journal)
    assert [prediction.reward for prediction in second.predictions] == [1, 1, 0]
    assert asked == [["1", "2", "3"], ["2"]]


def test_tasks_of_two_programs_are_refused() -> None:
    rows = [json.loads(line) for line in locate_rows("doubling:sums").read_text(encoding="utf-8").splitlines()]
    rows[1]["verifier"]["params"]["subject"] = "products"
    with pytest.raises(DataError, match="several programs"):
        Benchmark.of(rows, name="b").score(ScriptedModel("m", {}))


def test_its_tasks_are_no_training_data() -> None:
    with pytest.raises(DataError, match="benchmark only"):
        locate_rows("doubling:sums", train=True)


def test_kind_and_task_are_another_spelling_of_a_path() -> None:
    entry = {"kind": "lm_eval", "tasks": ["a", "b"], "params": {"include": "my evals"}, "name": "canary"}
    assert BenchmarkEntry.model_validate(entry).path == "lm_eval:a,b?include=my%20evals"
    [first] = Metadata.model_validate({"benchmark": {"kind": "inspect", "task": "e.py@t"}}).benchmark
    assert (first.path, first.role) == ("inspect:e.py@t", "test")
    for wrong in ({"kind": "inspect"}, {"kind": "inspect", "task": "t", "path": "x"}):
        with pytest.raises(ValueError, match="kind goes with task"):
            BenchmarkEntry.model_validate(wrong)
