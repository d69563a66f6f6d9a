"""An experiment that is killed again and again, at any moment, ends with the record of one that never was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest

from ..warm import run_evsys, start_evsys
from .timeless import is_compared, timeless

RUN = """
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
    eval_data: { path: few.jsonl, transforms: *chat }
metadata:
  benchmark:
    - { name: words, path: val.jsonl, split: val, run_every: 4, models: [base], max_tokens: 8 }
    - { name: often, path: val.jsonl, split: val, run_every: 3, samples: 2, max_tokens: 8 }
    - { name: words, path: test.jsonl, split: test, max_tokens: 8 }
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
SWEEP = """
name: e
output_dir: outputs
n_repeats: 3
max_concurrent_arms: 2
metadata:
  hypothesis: { claim: a higher rate learns more, baseline: r__learning_rate0p001 }
  success_metric: pass@1
  benchmark:
    - { name: words, path: val.jsonl, split: val, run_every: 4, metrics: [pass@1, mean_reward], models: [base] }
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
ON_POLICY = """
name: e
output_dir: outputs
run:
  name: r
  data:
    path: train.jsonl
    transforms:
      - kind: jsonl_to_chat
        params:
          user_template: "{prompt}. Words:\\n- red\\n- blue\\nAnswer with one."
          assistant_template: red
      EXTRA
  model: { name: tiny }
  algorithm: ALGORITHM
  backend: { kind: mock, params: { latency_ms: 5 } }
  rollouts: { share: 0.5, max_mb: 0.02 }
"""
TO_TASK = "- { kind: chat_to_harbor_task, params: { fn_name: exact_match } }"
COMMON = "max_steps: 8, save_every: 3, batch_size: 4, sampling: { max_tokens: 8 }"
RL = ON_POLICY.replace("EXTRA", TO_TASK)
SDFT = ON_POLICY.replace("EXTRA", "")
CASES = {
    "sft": (RUN.replace("ALGORITHM", SFT), 1, 6, 0.5),
    "combo": (RUN.replace("ALGORITHM", COMBO), 1, 6, 0.5),
    "sweep": (SWEEP, 12, 10, 1 / 6),
    "rl": (
        RL.replace("ALGORITHM", f"{{ kind: rl, params: {{ {COMMON}, group_size: 8, kl_coefficient: 0.1 }} }}"),
        1,
        2,
        0.6,
    ),
    "rl with updates": (
        RL.replace(
            "ALGORITHM", f"{{ kind: rl, params: {{ {COMMON}, group_size: 8, updates_per_batch: 2, loss_fn: ppo }} }}"
        ),
        1,
        2,
        0.6,
    ),
    "sdft": (SDFT.replace("ALGORITHM", f"{{ kind: sdft, params: {{ {COMMON} }} }}"), 1, 2, 0.6),
    "sdft synced": (
        SDFT.replace("ALGORITHM", f"{{ kind: sdft, params: {{ {COMMON}, teacher: synced, sync_every: 2 }} }}"),
        1,
        2,
        0.6,
    ),
}
"""Config, number of arms, number of kills, and the most that is recorded before a kill, as a part of the whole."""
ARGUMENTS = ("run", "config.yaml", "--quiet", "--resume")
VOLATILE = {
    "deviations",
    "seconds",
    "ts",
    "time",
    "id",
    "prev",
    "pid",
    "artifacts",
    "experiment",
    "experiment_id",
    "spend",
    "model",
}
"""What a repetition of the same experiment does not reproduce."""


def make_project(folder: Path, config: str) -> None:
    folder.mkdir()
    words = [f"{first}{second}" for first in "abcd" for second in "vwxyz"]
    rows = [{"prompt": f"say {word}", "completion": word.upper()} for word in words]
    pairs = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in rows]
    tasks: list[dict[str, Any]] = [
        {
            "task_id": word,
            "instruction": f"say {word}",
            "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": word.upper()},
        }
        for word in words
    ]
    files = {"train": rows, "few": rows[:6], "pairs": pairs, "val": tasks[:6], "test": tasks[6:12]}
    for name, content in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    (folder / "config.yaml").write_text(config, encoding="utf-8")


def run_to_end(folder: Path) -> None:
    done = run_evsys(folder, *ARGUMENTS)
    assert done.returncode == 0, done.stderr


def count_recorded(folder: Path) -> int:
    """Bytes in the logs: progress that does not depend on the speed of the machine."""
    count = 0
    for path in folder.glob("outputs/**/*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            count += path.stat().st_size
    return count


def kill_after(folder: Path, size: float) -> bool:
    """Start the command and kill its process, not its workers, when it has recorded so much; whether it still ran."""
    before = count_recorded(folder)
    with open(os.devnull, "wb") as null:
        command = start_evsys(folder, *ARGUMENTS, out=null.fileno(), err=null.fileno())
    while not command.ended:
        if count_recorded(folder) >= before + size:
            command.kill()
            break
        time.sleep(0.01)
    return command.wait() == -signal.SIGKILL


def stable(value: Any) -> Any:
    """JSON data without what differs between two runs."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in cast("dict[str, Any]", value).items() if key not in VOLATILE}
    return [stable(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def lines(path: Path) -> list[Any]:
    return [stable(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def last_scores(path: Path) -> list[Any]:
    """Each scoring once, in order: a run that was killed before its first checkpoint scores its start again."""
    return list({(line["split"], line["name"], line["step"]): line for line in lines(path)}.values())


def record_of(folder: Path, arms: int) -> dict[str, Any]:
    """Logs, scores in order, results, decisions of a search, conclusion, weights."""
    experiment = folder / "outputs" / "e"
    assert not (folder / "outputs" / "e.2").exists()
    logs = [path for path in experiment.rglob("*.jsonl") if is_compared(path)]
    contents: dict[str, Any] = {
        str(path.relative_to(experiment)): last_scores(path) if path.name == "scores.jsonl" else timeless(path)
        for path in logs
        if path.name not in ("journal.jsonl", "spend.jsonl")
    }
    for name in ("run_result.json", "conclusion.json", "scores.json", "benchmarks.json"):
        for path in experiment.rglob(name):
            contents[str(path.relative_to(experiment))] = stable(json.loads(path.read_text(encoding="utf-8")))
    contents["decisions"] = [line for line in lines(experiment / "journal.jsonl") if line["kind"] == "search_decision"]
    checkpoints = sorted(experiment.glob("*/checkpoints.jsonl"))
    assert len(checkpoints) == arms
    for path in checkpoints:
        last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
        weights = sorted((folder / last["state"]).glob("*.npz"))
        assert weights
        contents[f"{path.parent.name} weights"] = [file.read_bytes() for file in weights]
    return contents


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES)
def test_an_experiment_killed_at_random_moments_ends_like_one_that_was_not(case: str, tmp_path: Path) -> None:
    config, arms, kills, latest = CASES[case]
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, folder):
        make_project(place, config)
    run_to_end(whole)
    expected, size = record_of(whole, arms), count_recorded(whole)
    draw = random.Random(case)
    killed = [kill_after(folder, draw.uniform(0.02, latest) * size) for _ in range(kills)]
    assert any(killed)
    run_to_end(folder)
    actual = record_of(folder, arms)
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        assert actual[name] == value, name
