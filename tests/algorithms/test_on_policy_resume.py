"""An on-policy run that is killed after a checkpoint and resumed ends exactly like one that was not."""

import json
import os
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
run:
  name: r
  data:
    path: train.jsonl
    transforms:
      - kind: jsonl_to_chat
        params:
          user_template: "Say {prompt}. Words:\\n- red\\n- blue\\nAnswer with one."
          assistant_template: "{completion}"
      EXTRA
  model: { name: tiny }
  algorithm: ALGORITHM
  backend: { kind: mock, params: { latency_ms: 5 } }
  rollouts: { share: 0.5, max_mb: 0.02 }
"""
TO_TASK = "- { kind: chat_to_harbor_task, params: { fn_name: exact_match } }"
COMMON = "max_steps: 8, save_every: 3, batch_size: 4, sampling: { max_tokens: 8 }"
RECIPES = {
    "rl": f"{{ kind: rl, params: {{ {COMMON}, group_size: 8, kl_coefficient: 0.1 }} }}",
    "rl_updates": f"{{ kind: rl, params: {{ {COMMON}, group_size: 8, updates_per_batch: 2, loss_fn: ppo }} }}",
    "sdft": f"{{ kind: sdft, params: {{ {COMMON} }} }}",
    "sdft_synced": f"{{ kind: sdft, params: {{ {COMMON}, teacher: synced, sync_every: 2 }} }}",
}
COMMAND = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet", "--resume"]


def make_project(folder: Path, recipe: str) -> None:
    folder.mkdir()
    rows = [{"prompt": f"it {number}", "completion": ("red", "blue")[number % 2]} for number in range(8)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = CONFIG.replace("ALGORITHM", RECIPES[recipe]).replace("EXTRA", TO_TASK if recipe.startswith("rl") else "")
    (folder / "config.yaml").write_text(text, encoding="utf-8")


def run_to_end(folder: Path) -> None:
    done = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def kill_after_a_checkpoint(folder: Path) -> None:
    process = subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = folder / "outputs" / "e" / "r" / "checkpoints.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text(encoding="utf-8")):
        time.sleep(0.002)
    time.sleep(0.03)  # into the steps that the checkpoint knows nothing of
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def record_of(folder: Path) -> dict[str, Any]:
    run = folder / "outputs" / "e" / "r"
    last = json.loads((run / "checkpoints.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    weights = sorted((folder / last["state"]).glob("*.npz"))
    assert weights
    metrics = (run / "logs" / "metrics.jsonl").read_text(encoding="utf-8")
    rollouts = (run / "logs" / "training" / "rollouts.jsonl").read_bytes()
    assert rollouts
    return {
        "metrics": metrics,
        "last": last["metrics"],
        "weights": [path.read_bytes() for path in weights],
        "rollouts": rollouts,
    }


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_ends_like_one_that_was_not(recipe: str, tmp_path: Path) -> None:
    make_project(tmp_path / "whole", recipe)
    run_to_end(tmp_path / "whole")
    make_project(tmp_path / "killed", recipe)
    kill_after_a_checkpoint(tmp_path / "killed")
    run_to_end(tmp_path / "killed")
    assert record_of(tmp_path / "killed") == record_of(tmp_path / "whole")
