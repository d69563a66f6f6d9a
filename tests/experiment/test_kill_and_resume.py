"""A run that is killed at any moment and resumed ends exactly like one that never was."""

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

from .timeless import is_compared, timeless

CONFIG = """
name: e
output_dir: outputs
callbacks:
  - { kind: local_logger }
  - { kind: early_stopping, params: { metric: loss, mode: min, patience: 1000 } }
run:
  name: r
  data: { path: train.jsonl, transforms: &chat [{ kind: jsonl_to_chat }] }
  model: { name: tiny }
  algorithm: ALGORITHM
  backend: { kind: mock, params: { latency_ms: 10 } }
  eval:
    metrics: [{ kind: exact_match }]
    eval_data: { path: test.jsonl, transforms: *chat }
"""
SFT = "{ kind: sft, params: { batch_size: 4, num_epochs: 3, save_every: 4, eval_every: 9 } }"
COMBO = """
    kind: combo
    params:
      phases:
        - { kind: sft, params: { batch_size: 6, num_epochs: 2, save_every: 3, eval_every: 4 } }
        - kind: dpo
          params: { batch_size: 4, max_steps: 10, save_every: 3, eval_every: 4 }
          data: { path: pairs.jsonl }
"""
COMMAND = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet", "--resume"]
KILLS_PER_CHAIN = 5


def make_project(folder: Path, algorithm: str) -> None:
    folder.mkdir()
    rows = [{"prompt": f"say {word}", "completion": word.upper()} for word in "abcdefghijklmnopqrst"]
    pairs = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in rows]
    for name, content in (("train", rows), ("test", rows[:3]), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG.replace("ALGORITHM", algorithm), encoding="utf-8")


def run_to_end(folder: Path) -> float:
    began = time.monotonic()
    done = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def kill_after(folder: Path, delay: float) -> None:
    process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def record_of(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind that is not a time, a path or a name of an attempt."""
    run = folder / "outputs" / "e" / "r"
    kept = {str(path.relative_to(run)): timeless(path) for path in run.rglob("*.jsonl") if is_compared(path)}
    result = json.loads((run / "run_result.json").read_text(encoding="utf-8"))
    last = json.loads((run / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    weights = sorted((folder / last["state"]).glob("*.npz"))
    assert weights
    return {**kept, "metrics": result["metrics"], "weights": [path.read_bytes() for path in weights]}


@pytest.fixture(scope="module", params=[SFT, COMBO], ids=["sft", "combo"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float, Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "project"
    make_project(folder, request.param)
    took = run_to_end(folder)
    return request.param, took, record_of(folder)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("chain", [1, 2])
def test_a_run_killed_at_random_moments_ends_like_one_that_was_not(
    undisturbed: tuple[str, float, dict[str, Any]], chain: int, tmp_path: Path
) -> None:
    algorithm, took, expected = undisturbed
    folder = tmp_path / "project"
    make_project(folder, algorithm)
    moments = random.Random(chain)
    for _ in range(KILLS_PER_CHAIN):
        kill_after(folder, moments.uniform(0.2, took))
    run_to_end(folder)
    assert record_of(folder) == expected
