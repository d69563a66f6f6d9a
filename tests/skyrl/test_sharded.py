"""A model whose layers are spread over two devices trains as on one: the way beyond one GPU, seen on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ..backends.tinker.recipes import CHATS, rows
from .running import SkyRLServer, skyrl_python, tiny_model

pytestmark = pytest.mark.skyrl


def losses(server: SkyRLServer, folder: Path) -> list[float]:
    """What the same YAML goes through on a server."""
    folder.mkdir()
    params = {"max_steps": 8, "batch_size": 4, "learning_rate": 0.01, "lora_rank": 8}
    run = {
        "name": "r",
        "seed": 5,
        "model": {"name": str(server.model)},
        "data": rows(CHATS),
        "algorithm": {"kind": "sft", "params": params},
        "backend": {"kind": "skyrl", "params": {"base_url": server.url}},
    }
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"name": "e", "output_dir": "out", "run": run}), encoding="utf-8")
    command = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=600)
    assert done.returncode == 0, done.stderr
    [metrics] = folder.glob("out/**/metrics.jsonl")
    return [json.loads(line)["loss"] for line in metrics.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRLServer]:
    python = skyrl_python()
    assert python is not None
    with SkyRLServer(python, tiny_model(python), tmp_path_factory.mktemp("sharded"), devices=2) as running:
        yield running


def test_two_devices_that_share_a_model_train_it_as_one_does(
    server: SkyRLServer, sharded: SkyRLServer, tmp_path: Path
) -> None:
    alone, together = losses(server, tmp_path / "alone"), losses(sharded, tmp_path / "together")
    log = "".join(sharded.log.read_text(encoding="utf-8").split())  # its lines are broken anywhere
    assert '"tensor_parallel_size":2' in log
    assert len(together) == 8
    assert together == pytest.approx(alone, rel=1e-3)
    assert together[-1] < alone[0] / 2
