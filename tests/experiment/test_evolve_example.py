"""The evolution loop in examples/: it continues where it stopped, and stops when its budget is used up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@pytest.fixture
def project(examples: Path) -> Path:
    return examples.parent


def evolve(project: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "examples/14_evolve/evolve.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def attempts(project: Path) -> dict[str, float]:
    paths = project.glob("outputs/evolve/*/sft/run_result.json")
    return {path.parts[-3]: json.loads(path.read_text(encoding="utf-8"))["ts"] for path in paths}


@pytest.mark.slow
def test_the_same_command_continues_and_trains_nothing_twice(project: Path) -> None:
    short = evolve(project, "--experiments", "3")
    before = attempts(project)
    assert len(before) == 3
    longer = evolve(project, "--experiments", "5")
    after = attempts(project)
    assert len(after) == 5
    assert {name: after[name] for name in before} == before
    lines = short.index("")
    assert longer[:lines] == short[:lines]
    assert longer[longer.index("") + 1].startswith("5 experiments, ")


@pytest.mark.slow
def test_children_are_experiments_with_their_parent_on_record(project: Path) -> None:
    evolve(project, "--experiments", "4", "--population", "2", "--elite", "1")
    configs = [json.loads(path.read_text("utf-8")) for path in project.glob("outputs/evolve/*/config.json")]
    parents = {config["name"]: config["parent_experiment_id"] for config in configs}
    assert parents.pop("evolved") is None
    assert len(parents) == 3
    assert set(parents.values()) <= {"evolved", *parents}
    assert all(config["metadata"]["changes"] for config in configs if config["name"] != "evolved")


def test_it_stops_when_the_tokens_are_used_up(project: Path) -> None:
    evolve(project, "--experiments", "9", "--tokens", "1")
    assert len(attempts(project)) == 1
