"""A halving that is killed at random moments decides the same, and leaves the same record, as one that was not."""

from __future__ import annotations

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

WORDS = ["amber", "birch", "cedar", "dune", "ember", "frost"]
CONFIG = """
name: e
output_dir: outputs
search: { kind: halving, eta: 2 }
metadata:
  success_metric: pass_rate
  benchmark:
    name: v
    path: val.jsonl
    split: val
    run_every: 2
    max_tokens: 8
    metrics: [pass_rate]
base_run:
  name: r
  data: { path: train.jsonl, transforms: [{ kind: jsonl_to_chat }] }
  model: { name: tiny }
  algorithm: { kind: sft, params: { batch_size: 6, max_steps: 24, save_every: 3 } }
  backend: { kind: mock, params: { latency_ms: 4, hidden: 32 } }
matrix:
  axes: { algorithm.params.learning_rate: [1e-3, 1e-2, 3e-2, 6e-2] }
"""
COMMAND = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet", "--resume"]
KILLS = 6


def make_project(folder: Path) -> None:
    folder.mkdir()
    rows = [{"prompt": word, "completion": word[:2].upper()} for word in WORDS]
    verifier = {"kind": "in_process", "fn_name": "exact_match"}
    tasks = [
        {"task_id": word, "instruction": word, "verifier": {**verifier, "expected": word[:2].upper()}} for word in WORDS
    ]
    for name, content in (("train", rows), ("val", tasks)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")


def run_to_end(folder: Path) -> float:
    began = time.monotonic()
    done = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def kill_after(folder: Path, delay: float) -> bool:
    """Whether it was still running when it was killed."""
    process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    was_running = process.poll() is None
    if was_running:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return was_running


def record_of(folder: Path) -> dict[str, Any]:
    """Decisions, results, scores by task and weights: everything that is not a time, a path or a name of an attempt."""
    experiment = folder / "outputs" / "e"
    journal = [json.loads(line) for line in (experiment / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    decisions = [event for event in journal if event["kind"] == "search_decision"]
    found: dict[str, Any] = {
        "decisions": [{key: event[key] for key in event if key not in ("id", "time", "prev")} for event in decisions]
    }
    for run in sorted(path.parent for path in experiment.glob("*/run_result.json")):
        result = json.loads((run / "run_result.json").read_text(encoding="utf-8"))
        scores = [json.loads(line) for line in (run / "scores.jsonl").read_text(encoding="utf-8").splitlines()]
        last = json.loads((run / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        weights = sorted((folder / last["state"]).glob("*.npz"))
        assert weights
        found[run.name] = {
            "status": result["status"],
            "metrics": result["metrics"],
            "stopped": result["extras"].get("stopped_by_search"),
            "scores": [{key: line[key] for key in ("split", "name", "step", "metrics", "tasks")} for line in scores],
            "weights": [path.read_bytes() for path in weights],
        }
    return found


@pytest.mark.slow
@pytest.mark.e2e
def test_a_search_killed_at_random_moments_ends_like_one_that_was_not(tmp_path: Path) -> None:
    make_project(tmp_path / "undisturbed")
    took = run_to_end(tmp_path / "undisturbed")
    expected = record_of(tmp_path / "undisturbed")
    assert [note.get("rung") for note in expected["decisions"]][:1] == [1]
    assert {found["status"] for name, found in expected.items() if name != "decisions"} == {"completed", "cancelled"}

    make_project(tmp_path / "killed")
    moments = random.Random(7)
    killed = sum(kill_after(tmp_path / "killed", moments.uniform(0.3, took * 0.6)) for _ in range(KILLS))
    run_to_end(tmp_path / "killed")
    assert killed >= 2
    assert record_of(tmp_path / "killed") == expected
