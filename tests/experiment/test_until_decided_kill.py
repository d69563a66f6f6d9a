"""`until: decided` killed in a look, after one, and between two: the same looks and verdict, nothing paid twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.record.reader import ExperimentRecord

CONFIG = """
name: e
output_dir: outputs
n_repeats: 6
until: decided
looks: [2, 4, 6]
max_concurrent_arms: 1                # so that a kill hits nothing that is half-way through a step
launcher: { kind: local, params: { arms_in: threads } }
metadata:
  hypothesis: { claim: Ten steps are better than two., metric: pass@1, min_effect: 0.3, baseline: short }
  benchmark: { name: t, path: tasks.jsonl, split: test, max_tokens: 2 }
runs:
  - &short
    name: short
    data: { path: rows.jsonl }
    model: { name: tiny }
    algorithm: { kind: sft, params: { max_steps: 2, batch_size: 12, learning_rate: 0.03 } }
    backend: { kind: mock }
  - <<: *short
    name: long
    algorithm: { kind: sft, params: { max_steps: 10, batch_size: 12, learning_rate: 0.03 } }
"""
DRIVER = """
import os, signal, sys

from evsys_sdk.cli.main import main
from evsys_sdk.experiment import search
from evsys_sdk.record.events import Journal

where, number = sys.argv[1], int(sys.argv[2])
judge, append, started = search.judge_look, Journal.append, 0


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def judge_and_die(folder, trained):
    found = judge(folder, trained)
    if where == "in look" and len(trained) == number:
        kill()
    return found


def append_and_die(self, kind, **payload):
    global started
    found = append(self, kind, **payload)
    started += kind == "arm_started"
    if (where == "after look" and kind == "looked" and payload["look"] == number) or (
        where == "at arm" and kind == "arm_started" and started == number
    ):
        kill()
    return found


search.judge_look, Journal.append = judge_and_die, append_and_die
sys.argv = ["evsys", "run", "config.yaml", "--quiet", "--resume"]
sys.exit(main())
"""
KILLS = [
    ("at arm", 2),  # before the first look, and before its first step
    ("in look", 4),  # of two seeds of each run: judged, and not written yet
    ("after look", 1),  # written, and nobody started what it asks for
    ("at arm", 3),  # between two looks
    ("in look", 8),
]


def make_project(folder: Path) -> None:
    folder.mkdir()
    words = [f"{first}{second}" for first in "abcdef" for second in "uvwxyz"]
    verifier = {"kind": "in_process", "fn_name": "exact_match"}
    tasks = [
        {"task_id": word, "instruction": word, "verifier": {**verifier, "expected": word[:1].upper()}} for word in words
    ]
    rows = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": word[:1].upper()}]}
        for word in words
    ]
    for name, content in (("tasks", tasks), ("rows", rows)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in content), encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "driver.py").write_text(DRIVER, encoding="utf-8")


def run(folder: Path, where: str = "never", number: int = 0) -> int:
    command = [sys.executable, "driver.py", where, str(number)]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=240, check=False).returncode


def tell(folder: Path) -> dict[str, Any]:
    """What was seen, decided and paid: everything that is not a time, or about how often it was taken up again."""
    record = ExperimentRecord(folder / "outputs" / "e")
    conclusion = {name: told for name, told in record.conclusion.items() if name not in ("deviations", "experiment")}
    return {
        "looks": record.looks,
        "conclusion": conclusion,
        "tokens": {name: spent for name, spent in record.spend.items() if "tokens" in name},
        "arms": sorted(path.parent.name for path in record.folder.glob("*/run_result.json")),
    }


@pytest.mark.slow
@pytest.mark.e2e
def test_killed_in_and_between_looks_it_takes_the_same_decisions_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    make_project(tmp_path / "undisturbed")
    assert run(tmp_path / "undisturbed") == 0
    expected = tell(tmp_path / "undisturbed")
    assert [look["look"] for look in expected["looks"]] == [1, 2]
    assert len(expected["arms"]) >= 8
    assert expected["tokens"]["tokens_trained"] > 0

    make_project(tmp_path / "killed")
    for where, number in KILLS:
        assert run(tmp_path / "killed", where, number) == -signal.SIGKILL, (where, number)
    assert run(tmp_path / "killed") == 0
    assert tell(tmp_path / "killed") == expected
