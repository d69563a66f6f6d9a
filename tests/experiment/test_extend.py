"""A finished experiment gets more seeds or runs: one conclusion over all of them, counted as a further analysis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.errors import ConfigError
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment
from evsys_sdk.experiment.conclusion import Conclusion, read_stored_conclusion
from evsys_sdk.record.events import Kind
from evsys_sdk.record.reader import ExperimentRecord
from tests.audit.project import evsys, make_project


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    make_project(tmp_path, tasks=6)
    return tmp_path


def make(*steps: int, **changes: Any) -> ExperimentConfig:
    recipe = {"data": {"path": "data/train.jsonl"}, "model": {"name": "tiny"}, "backend": {"kind": "mock"}}
    runs = [
        recipe | {"name": f"steps{n}", "algorithm": {"kind": "sft", "params": {"max_steps": n, "batch_size": 2}}}
        for n in steps or (1, 3)
    ]
    claim = {"claim": "more steps help", "metric": "test/tools/pass@1", "baseline": "steps1"}
    metadata = {"hypothesis": claim, "benchmark": {"name": "tools", "path": "data/test.jsonl", "max_tokens": 4}}
    here = {"kind": "local", "params": {"arms_in": "threads"}}
    fields = {"name": "study", "output_dir": "outputs", "launcher": here, "metadata": metadata, "runs": runs}
    return ExperimentConfig.model_validate(fields | changes)


def concluded(path: Path) -> Conclusion:
    conclusion = read_stored_conclusion(path)
    assert conclusion is not None
    return conclusion


def started(path: Path) -> list[str]:
    return [event.text("arm") for event in ExperimentRecord(path).events if event.kind == Kind.ARM_STARTED]


@pytest.mark.parametrize("before", [1, 2])
def test_more_seeds_are_pooled_and_no_arm_is_trained_twice(before: int) -> None:
    path = Experiment(make(n_repeats=before)).run().path
    first = concluded(path)
    assert Experiment(make(n_repeats=4)).run(extend=True).path == path
    pooled = concluded(path)
    assert [run.n_seeds for run in pooled.runs] == [4, 4]
    assert (first.attempt, pooled.attempt) == (1, 2)
    assert pooled.error_rate is not None
    assert first.error_rate is not None
    assert pooled.error_rate < first.error_rate
    assert len(started(path)) == len(set(started(path))) == 8
    assert any("extended" in deviation for deviation in pooled.deviations)
    assert not audit_experiment(path).flags


def test_a_run_is_added_and_each_extension_is_counted() -> None:
    path = Experiment(make(n_repeats=2)).run().path
    Experiment(make(1, 3, 5, n_repeats=2)).run(extend=True)
    assert [run.name for run in concluded(path).runs if run.n_seeds == 2] == [run.name for run in concluded(path).runs]
    Experiment(make(1, 3, 5, n_repeats=3)).run(extend=True)
    assert concluded(path).attempt == 3
    assert sorted(concluded(path).runs[0].seeds) == [42, 43, 44]
    assert not audit_experiment(path).flags
    other = Experiment(make(n_repeats=2, base_seed=100)).run().path  # a new experiment on the claim is one trial more
    assert concluded(other).attempt == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "adds neither seeds nor runs"),
        ({"n_repeats": 1}, "in: n_repeats"),
        ({"n_repeats": 3, "runs": make(1, 4).model_dump(mode="json")["runs"]}, "run 'steps3'"),
        ({"n_repeats": 3, "base_seed": 7}, "base_seed"),
        ({"n_repeats": 4, "until": "decided"}, "with `until` cannot be extended"),
        ({"name": "other"}, "there is no experiment"),
    ],
)
def test_nothing_else_may_change(changes: dict[str, Any], told: str) -> None:
    Experiment(make(n_repeats=2)).run()
    with pytest.raises(ConfigError) as caught:
        Experiment(make(**{"n_repeats": 2, **changes})).run(extend=True)
    assert told in str(caught.value)


DEADLY = """
import os, signal
from pathlib import Path
from evsys_sdk import register_algorithm
from evsys_sdk.algorithms.sft import SFT

@register_algorithm("deadly")
class Deadly(SFT):
    name = "deadly"
    async def build_batch(self, step_idx):
        if Path("die").exists() and Path("outputs/study/steps3__seed44").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().build_batch(step_idx)
"""


@pytest.mark.slow
@pytest.mark.parametrize("again", [["--extend"], ["--resume"], []])
def test_a_killed_extension_continues_and_is_counted_once(again: list[str], project: Path) -> None:
    (project / "deadly.py").write_text(DEADLY, encoding="utf-8")

    def write(seeds: int) -> None:
        content = make(n_repeats=seeds).model_dump(mode="json", exclude_unset=True)
        for run in content["runs"]:
            run["algorithm"]["kind"] = "deadly"
        (project / "config.json").write_text(json.dumps(content), encoding="utf-8")

    def run(*more: str) -> int:
        done = evsys(project, "run", "config.json", "--quiet", "--import", "deadly.py", *more)
        return done.returncode

    write(2)
    assert run() == 0
    write(4)
    (project / "die").touch()
    assert run("--extend") != 0
    (project / "die").unlink()
    assert run(*again) == 0
    path = project / "outputs/study"
    conclusion = concluded(path)
    assert ([run.n_seeds for run in conclusion.runs], conclusion.attempt) == ([4, 4], 2)
    assert not audit_experiment(path).flags
