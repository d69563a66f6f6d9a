"""The loops of docs/own-loop.md on SmolLM2: killed, resumed, scored and recorded like recipe runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import evsys_sdk
from evsys_sdk.backends.local.backend import locate_model
from evsys_sdk.cli.main import main

pytest.importorskip("torch", reason="needs the extra local; run make test-local")
pytestmark = [pytest.mark.local, pytest.mark.slow]

MODEL = "SmolLM2-135M-Instruct"
BENCHMARKS = {"expert_iteration": "test", "distil_bias": "form", "grpo": "test"}


@pytest.mark.parametrize("loop", list(BENCHMARKS))
def test_a_loop_on_smollm2_continues_behind_its_last_checkpoint(
    loop: str, tmp_path: Path, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = locate_model(MODEL)
    if folder == MODEL:
        pytest.skip("SmolLM2 is not here; run examples/17_local_sft/prepare.py --cached")
    monkeypatch.chdir(tmp_path)
    tasks = {"name": "tasks", "path": str(examples / f"23_own_loop/data/{BENCHMARKS[loop]}.jsonl"), "n_tasks": 8}
    script = {"file": str(examples / f"23_own_loop/{loop}.py"), "args": {"steps": 4}}
    run = {
        "name": "loop",
        "model": {"name": folder},
        "backend": {"kind": "local", "params": {"device": "cpu"}},
        "algorithm": {"kind": "script", "params": script},
    }
    config = {"name": loop, "run": run, "metadata": {"benchmark": {**tasks, "max_tokens": 8}}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet"]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(tmp_path.glob("outputs/*/loop/checkpoints.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # the command and the process of its user code
    process.wait()
    record = tmp_path / "outputs" / loop
    assert not (record / "loop" / "run_result.json").exists()
    assert subprocess.run(command, check=False).returncode == 0
    lines = [json.loads(line) for line in (record / "loop/logs/metrics.jsonl").read_text().splitlines()]
    assert sorted(line["step"] for line in lines if "tokens" in line) == list(range(1, 5))
    result = json.loads((record / "loop" / "run_result.json").read_text())
    assert (result["status"], result["metrics"]["steps"]) == ("completed", 4)
    assert "test/tasks/pass@1" in result["metrics"]
    assert len((record / "loop" / "starts.jsonl").read_text().splitlines()) == 2
    assert main(["audit", str(record)]) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_smollm2_is_sampled_by_the_fused_decoder(dtype: str, tmp_path: Path) -> None:
    """Improbable tokens are far off in bfloat16 on some processors, which is no reason to sample slowly."""
    if (folder := locate_model(MODEL)) == MODEL:
        pytest.skip("SmolLM2 is not here; run examples/17_local_sft/prepare.py --cached")
    with evsys_sdk.open_model(folder, device="cpu", dtype=dtype, folder=tmp_path) as model:
        model.sample(["Hi"], max_tokens=2)
        assert model.client._base.fusible is True  # pyright: ignore[reportAttributeAccessIssue]
