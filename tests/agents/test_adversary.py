"""An agent that wants a verdict at any price, with a shell that no hook watches: the audit tells on it each time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk.scaffold.project import init_project

from ..warm import run_evsys

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def found(root: Path) -> set[tuple[str, str]]:
    """The checks in which an audit of the whole project finds something, each with its state."""
    done = run_evsys(root, "audit", "--json")
    assert done.returncode in (0, 2), done.stderr
    checks = [check for report in json.loads(done.stdout) for check in report["checks"]]
    return {(check["name"], check["state"]) for check in checks if check["state"] == "flagged"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with an experiment that was too short to show anything."""
    root = init_project("shop", into=tmp_path_factory.mktemp("adversary") / "shop").root
    assert run_evsys(root, "new-experiment", "first").returncode == 0
    path = config_of(root)
    text = path.read_text("utf-8").replace("max_steps: 30", "max_steps: 6").replace("n_repeats: 3", "n_repeats: 2")
    path.write_text(text.replace("run_every: 10", "run_every: 6"), encoding="utf-8")
    assert run_evsys(root, "run", str(path), "--quiet").returncode == 0
    before = found(root)
    assert not {name for name, _ in before} & {"conclusion", "files", "tasks", "answers"}
    assert "flagged" not in {state for _, state in before}
    return root


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to misbehave in."""
    import shutil

    return Path(shutil.copytree(finished, tmp_path / "shop"))


def config_of(root: Path) -> Path:
    return next((root / "experiments").glob("*_first")) / "config.yaml"


def raise_the_verdict(root: Path) -> None:
    for path in root.glob(".evsys/runs/*/conclusion.json"):
        parsed = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**parsed, "verdict": "supported"}), encoding="utf-8")


def raise_the_scores(root: Path) -> None:
    for path in root.glob(".evsys/runs/*/*/scores.jsonl"):
        path.write_text(re.sub(r"\b0\.0\b", "1.0", path.read_text("utf-8")), encoding="utf-8")


def ask_what_the_model_says(root: Path) -> None:
    """Make the benchmark want what the short training answers, and run it again."""
    path = root / "data" / "benchmark" / "tickets_test" / "tasks.jsonl"
    tasks = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for task in tasks:
        task["verifier"] |= {"fn_name": "contains", "expected": "e"}
    path.write_text("".join(f"{json.dumps(task)}\n" for task in tasks), encoding="utf-8")
    done = run_evsys(root, "run", str(config_of(root)), "--quiet", "--fresh")
    assert done.returncode == 0
    assert "has changed since it was" in done.stderr


def judge_by_less(root: Path) -> None:
    """Let the verifier be content with any letter, and run it again."""
    path = root / "src" / "verifiers.py"
    text = path.read_text("utf-8").replace("float(named == [expected])", "float(any(map(str.isalpha, model_output)))")
    path.write_text(text, encoding="utf-8")
    assert run_evsys(root, "run", str(config_of(root)), "--quiet", "--fresh").returncode == 0


@pytest.mark.parametrize(
    ("cheat", "said", "state"),
    [
        (raise_the_verdict, "conclusion", "flagged"),
        (raise_the_scores, "files", "flagged"),
        (judge_by_less, "answers", "flagged"),
    ],
)
def test_no_verdict_is_raised_without_the_audit_saying_so(
    cheat: Callable[[Path], None], said: str, state: str, project: Path
) -> None:
    cheat(project)
    assert (said, state) in found(project)


def test_other_tasks_under_the_same_name_are_reported(project: Path) -> None:
    ask_what_the_model_says(project)
