"""The supervised and RL loops of tinker-cookbook run against our server from their own package, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .serving import KEY, ServerProcess

pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook; run make test-cookbook")
pytestmark = [pytest.mark.tinker, pytest.mark.slow]

RUNS = Path(__file__).with_name("cookbook_runs.py")
KINDS = ["custom", "sft", "sft_longer", "rl", "rl_learns", "rl_kl", "rl_async", "rl_stream"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the runs wrote what happened; in one process, because the cookbook takes long to import."""
    folder = tmp_path_factory.mktemp("cookbook")
    with ServerProcess(folder / "state") as server:
        command = [sys.executable, str(RUNS), server.url, str(folder / "logs"), *KINDS]
        environment = {**os.environ, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
        assert done.returncode == 0, done.stderr[-4000:]
        yield folder / "logs"


def metrics(logs: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logs / run / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_the_supervised_loop_learns_resumes_and_saves(logs: Path) -> None:
    rows = metrics(logs, "sft")
    assert rows[-1]["train_mean_nll"] < rows[0]["train_mean_nll"] / 4
    evaluated = [row["test/nll"] for row in rows if "test/nll" in row]
    assert evaluated[-1] < evaluated[0] / 4
    assert [row["step"] for row in rows] == list(range(10)), "the second run went on where the first one ended"
    saved = [json.loads(line) for line in (logs / "sft" / "checkpoints.jsonl").read_text("utf-8").splitlines()]
    assert saved[-1]["state_path"].startswith("tinker://")


def test_a_custom_loss_of_the_package_has_its_gradient(logs: Path) -> None:
    parsed = json.loads((logs / "custom" / "losses.json").read_text("utf-8"))
    assert parsed["by hand"] == pytest.approx(parsed["named"], rel=1e-5)
    assert parsed["named"][4] < parsed["named"][0]


def test_the_rl_loop_learns(logs: Path) -> None:
    rewards = [row["env/all/correct"] for row in metrics(logs, "rl_learns")]
    assert len(rewards) == 8
    assert sum(rewards[-2:]) > sum(rewards[:2])


@pytest.mark.parametrize("run", ["rl", "rl_kl", "rl_async", "rl_stream"])
def test_every_mode_of_the_rl_loop_runs_to_its_end(logs: Path, run: str) -> None:
    rows = metrics(logs, run)
    assert len(rows) == 4
    for row in rows:
        if run != "rl_async":
            assert abs(row["optim/kl_sample_train_v1"]) < 1e-3, "sampler and trainer disagree about what was sampled"


def test_the_kl_penalty_measures_from_the_base_model(logs: Path) -> None:
    rows = metrics(logs, "rl_kl")
    assert abs(rows[0]["kl_policy_base"]) < 0.05
    assert all("kl_pre_post_v1" in row for row in rows)
