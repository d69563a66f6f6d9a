"""Honest experiments of many shapes: recipes x data x splits x what happened to them. None is flagged."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_metric, register_verifier
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.audit.audit import audit_experiment

from .project import make_project, read_lines, rows, task, write_lines

pytestmark = pytest.mark.slow

PARAMS = {"batch_size": 2, "learning_rate": 0.02}
HERE = {"kind": "local", "params": {"arms_in": "threads"}}


@register_verifier("honest_noise")
class HonestNoise:
    """A verifier that rewards the same answer differently, and says so."""

    deterministic = False

    def __call__(self, model_output: str, expected: Any, params: dict[str, Any]) -> float:
        return float(random.random() < 0.5)


@register_metric("honest_nan")
class HonestNaN:
    """A metric that has no value."""

    name = "honest_nan"

    def compute(self, task_rewards: Any) -> float:
        return float("nan")


def sft(steps: int) -> dict[str, Any]:
    return {"algorithm": {"kind": "sft", "params": {**PARAMS, "max_steps": steps}}}


def combo(steps: int) -> dict[str, Any]:
    phases = [{"kind": "sft", "params": {**PARAMS, "max_steps": steps}} for _ in range(2)]
    return {"algorithm": {"kind": "combo", "params": {"phases": phases}}}


def rl(steps: int) -> dict[str, Any]:
    params = {"group_size": 4, "sampling": {"max_tokens": 4}, "max_steps": steps, "batch_size": 2}
    return {"algorithm": {"kind": "rl", "params": params}, "data": {"path": "data/rl.jsonl"}}


def two_models(steps: int) -> dict[str, Any]:
    """The claim is about two base models."""
    return {**sft(2), "model": {"name": f"tiny-{steps}"}}


RECIPES = {"sft": sft, "combo": combo, "rl": rl, "two_models": two_models}
DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "file": lambda: {"path": "data/train.jsonl"},
    "rows": lambda: {"source_kind": "in_memory", "rows": read_lines(Path("data/train.jsonl"))[:20]},
    "duplicates": lambda: {"path": "data/twice.jsonl"},
}
SPLITS: dict[str, list[dict[str, Any]]] = {
    "test": [{"path": "data/test.jsonl", "split": "test"}],
    "val and test": [
        {"path": "data/val.jsonl", "split": "val", "run_every": 1},
        {"path": "data/test.jsonl", "split": "test", "models": ["base"]},
    ],
    "noisy verifier": [{"path": "data/noisy.jsonl", "split": "test", "samples": 2}],
    "no value": [{"path": "data/test.jsonl", "split": "test", "metrics": ["pass@1", "honest_nan"]}],
}


def run(config: dict[str, Any], **how: bool) -> Path:
    return Experiment(ExperimentConfig.model_validate(config)).run(**how).path


def run_plainly(config: dict[str, Any]) -> Path:
    return run(config)


def stop_and_resume(config: dict[str, Any]) -> Path:
    run({**config, "budget": {"tokens": 40}})
    return run({**config, "budget": {"tokens": 10**9}}, resume=True)


def extend(config: dict[str, Any]) -> Path:
    run(config)
    return run({**config, "n_repeats": 3}, extend=True)


def run_again_with_other_task_order(config: dict[str, Any]) -> Path:
    """The file is reordered and gets another task between two experiments."""
    run(config)
    path = Path("data/test.jsonl")
    write_lines(path, [*read_lines(path)[::-1], task("start radio 7", "RADIO")])
    return run({**config, "name": "again", "base_seed": 7})


ENDINGS = [run_plainly, stop_and_resume, extend, run_again_with_other_task_order]
PRODUCT = itertools.product(*map(enumerate, (RECIPES, DATA, SPLITS, ENDINGS)))
SHAPES = [
    (recipe, data, split, ending)
    for (a, recipe), (b, data), (c, split), (d, ending) in PRODUCT
    if (recipe != "rl" or data == "file") and (a + b + c + d) % 3
]
"""Two thirds of all combinations: any three properties meet."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path, tasks=5)
    train = read_lines(tmp_path / "data/train.jsonl")
    write_lines(tmp_path / "data/twice.jsonl", [*train[:15], *train[:15]])
    found = rows(random.Random(5), 30)
    write_lines(tmp_path / "data/val.jsonl", [task(f"val {question}", answer) for question, answer in found[:5]])
    write_lines(tmp_path / "data/rl.jsonl", [task(f"train {question}", answer) for question, answer in found[5:25]])
    noisy = [task(f"noisy {question}", answer, verifier="honest_noise") for question, answer in found[25:]]
    write_lines(tmp_path / "data/noisy.jsonl", noisy)
    return tmp_path


def test_any_three_properties_meet() -> None:
    assert len(SHAPES) >= 95
    shapes = [one for one in SHAPES if one[0] != "rl"]
    for at in range(4):
        kinds = [len({one[place] for one in shapes}) for place in range(4) if place != at]
        assert len({one[:at] + one[at + 1 :] for one in shapes}) == math.prod(kinds)


@pytest.mark.parametrize(
    ("recipe", "data", "split", "ending"), SHAPES, ids=["-".join([*one[:3], one[3].__name__]) for one in SHAPES]
)
def test_an_honest_experiment_of_any_shape_is_not_flagged(
    recipe: str, data: str, split: str, ending: Callable[[dict[str, Any]], Path], project: Path
) -> None:
    plain = {"data": DATA[data](), "model": {"name": "tiny"}, "backend": {"kind": "mock"}}
    runs = [{"name": f"steps{steps}", **plain, **RECIPES[recipe](steps)} for steps in (1, 3)]
    benchmark = [{"name": "tools", "max_tokens": 4, **entry} for entry in SPLITS[split]]
    hypothesis = {"claim": "more steps help", "metric": "test/tools/pass@1", "baseline": "steps1"}
    config = {"name": "study", "output_dir": "outputs", "n_repeats": 2, "launcher": HERE, "runs": runs}
    path = ending({**config, "metadata": {"hypothesis": hypothesis, "benchmark": benchmark}})
    report = audit_experiment(path)
    assert report.clean, [check.to_dict() for check in report.flags]
