"""SFT from a YAML file on SkyRL's server: it learns, and a run that was killed continues exactly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..backends.tinker.recipes import CHATS, rows
from .running import SkyRLServer

pytestmark = pytest.mark.skyrl
STEPS = 20


@pytest.fixture(scope="module")
def undisturbed(server: SkyRLServer, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run that no one disturbed."""
    config = written(tmp_path_factory.mktemp("undisturbed"), server)
    done = subprocess.run(command(config), capture_output=True, text=True, check=False, cwd=config.parent, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "averages losses" in done.stderr
    assert done.stderr.count("ignores grad_clip_norm (1)") == 1
    return losses(config)


def written(folder: Path, server: SkyRLServer) -> Path:
    params = {"max_steps": STEPS, "batch_size": 4, "save_every": 5, "learning_rate": 0.01, "lora_rank": 8}
    run: dict[str, Any] = {
        "name": "r",
        "seed": 5,
        "model": {"name": str(server.model)},
        "data": rows(CHATS),
        "algorithm": {"kind": "sft", "params": params},
        "backend": {"kind": "skyrl", "params": {"base_url": server.url}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"name": "skyrl", "output_dir": "out", "run": run}), encoding="utf-8")
    return path


def command(config: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "evsys_sdk", "run", str(config), *options]


def losses(config: Path) -> dict[int, float]:
    items = list((config.parent / "out").glob("**/metrics.jsonl"))
    lines = items[0].read_text(encoding="utf-8").split("\n")[:-1] if items else []
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def test_the_loss_falls_by_more_than_half(undisturbed: dict[int, float]) -> None:
    assert sorted(undisturbed) == list(range(1, STEPS + 1))
    first, last = undisturbed[1], undisturbed[STEPS]
    assert last < first / 2


def test_a_run_that_was_killed_continues_exactly(
    undisturbed: dict[int, float], server: SkyRLServer, tmp_path: Path
) -> None:
    config = written(tmp_path, server)
    process = subprocess.Popen(command(config), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and max(losses(config), default=0) < 12:
            time.sleep(0.1)
    finally:
        process.kill()
        code = process.wait()
    assert code == -signal.SIGKILL, "it had ended before it could be killed"
    done = subprocess.run(
        command(config, "--resume"), capture_output=True, text=True, check=False, cwd=tmp_path, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert losses(config) == undisturbed
