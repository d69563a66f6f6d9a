"""A sweep that is killed again and again, at any moment, ends with the record of one that never was."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CONFIG = """
name: e
output_dir: outputs
n_repeats: 3
max_concurrent_arms: 2
metadata:
  hypothesis: { claim: a higher rate learns more, baseline: r__learning_rate0p001 }
  success_metric: pass@1
  benchmark:
    - { name: words, path: tasks.jsonl, split: val, run_every: 4, metrics: [pass@1, mean_reward], models: [base] }
    - { name: words, path: test.jsonl, split: test, metrics: [pass@1], samples: 2 }
matrix:
  axes: { algorithm.params.learning_rate: [0.001, 0.003, 0.01, 0.03] }
base_run:
  name: r
  data: { path: train.jsonl, transforms: [{ kind: jsonl_to_chat }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { batch_size: 4, max_steps: 10, save_every: 3 } }
  backend: { kind: mock, params: { latency_ms: 10 } }
"""
COMMAND = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet"]
ARMS = 12
SWEEPS = 5
KILLS_PER_SWEEP = 10
VOLATILE = {
    "deviations",
    "seconds",
    "ts",
    "time",
    "id",
    "pid",
    "artifacts",
    "experiment",
    "experiment_id",
    "spend",
    "model",
}
"""What a repetition of the very same experiment would not reproduce."""


def make_project(folder: Path) -> None:
    folder.mkdir()
    words = [f"{first}{second}" for first in "abcd" for second in "vwxyz"]
    rows = [{"prompt": f"say {word}", "completion": word.upper()} for word in words]
    tasks = [
        {
            "task_id": word,
            "instruction": f"say {word}",
            "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": word.upper()},
        }
        for word in words[:12]
    ]
    for name, content in (("train", rows), ("tasks", tasks[:6]), ("test", tasks[6:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")


def run_to_end(folder: Path) -> float:
    began = time.monotonic()
    done = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def kill_after(folder: Path, delay: float) -> bool:
    """Start the sweep and kill its process, not its workers; whether it was still at work."""
    process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def stable(value: Any) -> Any:
    """JSON data without what no two runs share."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if key not in VOLATILE}
    return [stable(inner) for inner in value] if isinstance(value, list) else value


def lines(path: Path) -> list[Any]:
    return [stable(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def record_of(folder: Path) -> dict[str, Any]:
    """Everything the experiment leaves behind that is not a time, a path or a name of an attempt."""
    experiment = folder / "outputs" / "e"
    skipped = ("starts.jsonl", "checkpoints.jsonl", "artifacts.jsonl", "timing.jsonl", "journal.jsonl", "spend.jsonl")
    found: dict[str, Any] = {
        str(path.relative_to(experiment)): lines(path)
        for path in experiment.rglob("*.jsonl")
        if path.name not in skipped
    }
    for name in ("run_result.json", "conclusion.json", "scores.json", "benchmarks.json"):
        for path in experiment.rglob(name):
            found[str(path.relative_to(experiment))] = stable(json.loads(path.read_text(encoding="utf-8")))
    arms = sorted(path.parent for path in experiment.glob("*/checkpoints.jsonl"))
    assert len(arms) == ARMS
    for arm in arms:
        last = json.loads((arm / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        weights = sorted((folder / last["state"]).glob("*.npz"))
        assert weights
        found[f"{arm.name} weights"] = [path.read_bytes() for path in weights]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed") / "project"
    make_project(folder)
    return run_to_end(folder), record_of(folder)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("sweep", range(SWEEPS))
def test_a_sweep_killed_at_random_moments_ends_like_one_that_was_not(
    undisturbed: tuple[float, dict[str, Any]], sweep: int, tmp_path: Path
) -> None:
    took, expected = undisturbed
    folder = tmp_path / "project"
    make_project(folder)
    moments = random.Random(sweep)
    kills = 0
    while kills < KILLS_PER_SWEEP and kill_after(folder, moments.uniform(0.4, took / 6)):
        kills += 1
    assert kills == KILLS_PER_SWEEP  # else it was too quick to be disturbed
    run_to_end(folder)
    assert not (folder / "outputs" / "e.2").exists()
    found = record_of(folder)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert found[name] == value, name
