"""The `mlflow_logger` callback against a real MLflow server, in an environment of its own.

EVSYS_MLFLOW_PYTHON names a Python that has the `mlflow` package; `make test-mlflow` makes one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evsys_sdk import Experiment, ExperimentConfig

PYTHON = os.environ.get("EVSYS_MLFLOW_PYTHON", "")
READ = """
import json, sys, mlflow
client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
[experiment] = client.search_experiments(filter_string="name = 'routing'")
def read(run):
    history = {key: [[point.step, point.value] for point in client.get_metric_history(run.info.run_id, key)]
               for key in run.data.metrics}
    return {"name": run.info.run_name, "status": run.info.status, "tags": run.data.tags, "params": run.data.params,
            "history": history}
print(json.dumps([read(run) for run in client.search_runs([experiment.experiment_id])]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="needs EVSYS_MLFLOW_PYTHON, a Python that has mlflow: `make test-mlflow`"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'runs.db'}", "--artifacts-destination", str(tmp_path)]
    command = [PYTHON, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/health", process, tmp_path / "server.log")
        yield url
    finally:
        os.killpg(process.pid, 9)  # it was started in a session of its own, with its workers
        process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 400
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text("utf-8")
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError(log.read_text("utf-8"))


def test_a_run_and_its_scores_are_there_as_mlflow_itself_reads_them(server: str, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "write a"}, {"role": "assistant", "content": "a"}]}
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": "a"}
    task = {"task_id": "a", "instruction": "say a", "verifier": verifier}
    (tmp_path / "val.jsonl").write_text(json.dumps(task) + "\n", "utf-8")
    params = {"tracking_uri": server, "tags": {"team": "a"}, "every": 2, "timeout_seconds": 120}
    config = {
        "name": "routing",
        "output_dir": str(tmp_path / "outputs"),
        "metadata": {
            "hypothesis": "It learns.",
            "benchmark": {
                "name": "letters",
                "path": str(tmp_path / "val.jsonl"),
                "split": "val",
                "run_every": 2,
                "max_tokens": 4,
            },
        },
        "callbacks": [{"kind": "mlflow_logger", "params": params}],
        "run": {
            "name": "sft",
            "data": {"source_kind": "in_memory", "rows": [row, row]},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": 5, "batch_size": 2, "learning_rate": 0.01}},
            "backend": {"kind": "mock"},
        },
    }
    result = Experiment(ExperimentConfig.model_validate(config)).run()
    assert result.exit_code == 0, [(arm.result.error, arm.result.notes) for arm in result.arms]
    done = subprocess.run([PYTHON, "-c", READ, server], capture_output=True, text=True, check=True)
    [run] = list[dict[str, Any]](json.loads(done.stdout))
    assert (run["name"], run["status"], run["tags"]["team"]) == ("sft", "FINISHED", "a")
    assert run["tags"]["mlflow.note.content"] == "It learns."
    assert run["tags"]["evsys.final_checkpoint"]
    assert [step for step, _ in run["history"]["loss"]] == [1, 2, 3, 4, 5]
    assert run["history"]["loss"][-1][1] < run["history"]["loss"][0][1]
    assert [step for step, _ in run["history"]["val/letters/pass_at_1"]] == [2, 4, 5]
    assert run["params"]["algorithm.params.learning_rate"] == "0.01"
