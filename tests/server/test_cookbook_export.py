"""tinker-cookbook takes weights that were trained here home: it downloads, converts and merges them, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .serving import KEY, ServerProcess

pytest.importorskip("tinker_cookbook", reason="needs tinker-cookbook; run make test-cookbook")
pytestmark = [pytest.mark.tinker, pytest.mark.slow]


def run(*arguments: object) -> str:
    command = [sys.executable, str(Path(__file__).with_name("cookbook_export.py")), *map(str, arguments)]
    environment = {**os.environ, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("export")
    model = folder / "tiny-llama"
    run("make", model)
    options = ("--backend", "local", "--model", str(model), "--backend-param", "device=cpu")
    options += ("--backend-param", "exact=true")
    with ServerProcess(folder / "state", *options) as server:
        return json.loads(run("export", server.url, model, folder / "out").splitlines()[-1])


def test_the_merged_model_thinks_what_the_trained_one_thought(seen: dict[str, Any]) -> None:
    assert seen["before"] == pytest.approx(seen["base"], abs=1e-4)
    assert sum(seen["after"]) > sum(seen["before"]) + 10, "it has learned the text"
    assert seen["merged"] == pytest.approx(seen["after"], abs=1e-3)


def test_a_state_is_downloaded_encrypted_and_is_the_same(seen: dict[str, Any]) -> None:
    external, state = seen["downloaded"]["external"], seen["downloaded"]["state"]
    assert external["adapter_model.safetensors"] == state["adapter_model.safetensors"]
    assert set(external) == set(state)


def test_an_adapter_in_the_layout_of_peft_is_made(seen: dict[str, Any]) -> None:
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(seen["peft"])
