"""What earlier experiments tell a later one: the noise they lend, and the run that it goes on from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment, ExperimentResult
from evsys_sdk.experiment.conclusion import Conclusion, conclude
from evsys_sdk.experiment.conclusion.markdown import as_markdown
from evsys_sdk.record.events import Event, Journal, Kind, first_event

type Config = Callable[..., ExperimentConfig]
type Start = Callable[..., ExperimentResult]


@pytest.fixture
def start(config: Config, tmp_path: Path, uneven: str) -> Start:
    """Run an experiment of one recipe with two seeds on twelve tasks; `seed` is the first of them."""
    tasks = [
        {"task_id": f"t{at}", "instruction": f"say {at}", "verifier": {"kind": "in_process", "fn_name": uneven}}
        for at in range(12)
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="utf-8")

    def run(name: str, seed: int, **changes: Any) -> ExperimentResult:
        about: dict[str, Any] = {
            "hypothesis": {"claim": "longer is better", "metric": "pass@1", **changes.pop("claim", {})},
            "benchmark": {"name": "suite", "path": str(path), "split": "test", "max_tokens": 4},
        }
        about["benchmark"]["temperature"] = 1.0  # answers differ, so that seeds do
        changes = {"launcher": {"kind": "local", "params": {"arms_in": "threads"}}, **changes}
        return Experiment(config(name=name, metadata=about, base_seed=seed, n_repeats=2, **changes), checked=True).run()

    return run


def started(result: ExperimentResult) -> Event:
    found = first_event(result.path)
    assert found is not None
    return found


def concluded(result: ExperimentResult) -> Conclusion:
    assert result.conclusion is not None
    return conclude(result.path)


class TestParent:
    def test_a_child_is_compared_with_the_best_run_of_its_parent(self, start: Start) -> None:
        parent = start("parent", 1)
        best = concluded(parent).best_arm
        child = start("child", 5, run={"name": "child"}, parent_experiment_id=started(parent).text("experiment_id"))
        found = concluded(child)
        assert found.baseline == f"{best} of {parent.experiment_id}"
        assert found.baseline_is == "this experiment continues from it"
        assert [one.run for one in found.comparisons] == ["child"]
        assert found.best_arm == "child"

    def test_it_may_be_named_and_then_its_latest_attempt_counts(self, start: Start) -> None:
        start("parent", 1)
        again = start("parent", 3)
        child = start("child", 5, run={"name": "child"}, parent_experiment_id="parent")
        assert str(concluded(child).baseline).endswith(f" of {again.experiment_id}")

    def test_a_baseline_that_is_given_goes_first(self, start: Start) -> None:
        start("parent", 1)
        child = start("child", 5, claim={"baseline": "r"}, parent_experiment_id="parent")
        assert concluded(child).baseline == "r"

    def test_a_parent_that_is_gone_or_cannot_be_counted_on_is_none(self, start: Start) -> None:
        parent = start("parent", 1)
        child = start("child", 5, run={"name": "child"}, parent_experiment_id="parent")
        with Journal.of(parent.path) as journal:
            journal.append(Kind.INVALIDATED, reason="leak")
        assert concluded(child).baseline is None
        shutil.rmtree(parent.path)
        assert concluded(child).baseline is None
        assert concluded(child).verdict == "inconclusive"


def test_the_conclusion_says_what_was_measured_with_what(start: Start, uneven: str) -> None:
    found = concluded(start("first", 1))
    assert found.identity["model"] == "tiny"
    assert len(found.identity[f"verifier {uneven}"]) > 8
    assert found.identity["packages"].startswith("evsys-sdk ")
    assert "- model: tiny" in as_markdown(found)
