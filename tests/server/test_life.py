"""Sessions that end, servers that are stopped, and what they say about themselves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from .serving import Raw, ServerProcess, step

pytestmark = pytest.mark.tinker


def until(condition: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_silent_session_is_ended_and_one_with_heartbeats_is_not(state_dir: Path) -> None:
    with ServerProcess(state_dir, "--idle-s", "1.5") as server:
        raw = Raw(server.url)
        model, alive = raw.model(), raw.session()
        silent = model.partition(":")[0]

        def ended() -> bool:
            assert raw.post("session_heartbeat", {"session_id": alive}).status_code == 200
            return silent not in raw.get("sessions").json()["sessions"]

        until(ended)
        assert raw.get("sessions").json()["sessions"] == [alive]
        assert raw.post("session_heartbeat", {"session_id": silent}).status_code == 410
        assert raw.forward_backward(model, 1).status_code == 404
        until(lambda: raw.get("healthz").json()["models"] == 0)
        raw.http.close()


def test_a_finished_session_lets_go_of_its_models(raw: Raw) -> None:
    model = raw.model()
    session = model.partition(":")[0]
    request_id = raw.forward_backward(model, 1).json()["request_id"]
    assert raw.get(f"sessions/{session}").json()["training_run_ids"] == [model]
    assert raw.post(f"sessions/{session}/finish", {"reason": {"type": "success"}}).status_code == 200
    assert raw.get(f"sessions/{session}").status_code == 410
    until(lambda: raw.fetch(request_id).status_code == 410)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_stopped_finishes_what_it_has(state_dir: Path, number: int) -> None:
    with ServerProcess(state_dir, "--backend-param", "latency_ms=300") as server:
        raw = Raw(server.url)
        model = raw.model()
        ids = [raw.forward_backward(model, 1), raw.post("optim_step", step(model, 2)), raw.forward_backward(model, 3)]
        saved = raw.post("save_weights", {"model_id": model, "seq_id": 4, "path": "last"})
        losses: list[float] = []
        fetching = threading.Thread(target=lambda: losses.extend(raw.loss(ids[i].json()["request_id"]) for i in (0, 2)))
        fetching.start()
        server.process.send_signal(number)
        until(lambda: raw.get("healthz").json()["draining"])
        refused = raw.post("optim_step", step(model, 5))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert raw.result(saved.json()["request_id"])["path"] == f"tinker://{model}/weights/last"
        raw.result(ids[1].json()["request_id"])
        fetching.join()
        assert server.process.wait(60) == 0
        assert losses[1] < losses[0]
        raw.http.close()
    with ServerProcess(state_dir) as again:
        other = Raw(again.url)
        assert other.post("weights_info", {"tinker_path": f"tinker://{model}/weights/last"}).status_code == 200
        other.http.close()


def test_a_server_that_is_stopped_does_not_wait_for_requests_that_cannot_come(state_dir: Path) -> None:
    with ServerProcess(state_dir, "--grace-s", "600") as server:
        raw = Raw(server.url)
        behind = raw.forward_backward(raw.model(), 2).json()["request_id"]
        server.process.send_signal(signal.SIGTERM)
        assert "did not arrive" in raw.result(behind)["error"]
        assert server.process.wait(60) == 0
        raw.http.close()


def test_asking_twice_stops_at_once(state_dir: Path) -> None:
    with ServerProcess(state_dir, "--backend-param", "latency_ms=60000") as server:
        raw = Raw(server.url)
        raw.forward_backward(raw.model(), 1)
        server.process.send_signal(signal.SIGINT)
        until(lambda: raw.get("healthz").json()["draining"])
        raw.http.close()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 130


def test_the_server_describes_its_vocabulary_to_our_clients(raw: Raw) -> None:
    about = raw.get("evsys/model").json()
    assert (about["backend"], about["model_name"], about["vocab_size"]) == ("mock", "tiny", 259)
    assert about["tokenizer"]["kind"] == "bytes"
    assert "cross_entropy" in about["losses"]
    assert raw.http.get("/evsys/model", params={"base_model": "other"}).status_code == 400


def test_the_example_in_the_documentation_works(server: ServerProcess) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *losses, sample = done.stdout.splitlines()
    assert float(losses[-1]) < float(losses[0]) / 100
    assert sample == repr(b", world")


def test_params_reach_the_backend(state_dir: Path) -> None:
    options = ["--backend-param", "context_length=64", "--model", "a/b", "--model", "c"]
    with ServerProcess(state_dir, *options) as server:
        raw = Raw(server.url)
        models = raw.get("get_server_capabilities").json()["supported_models"]
        assert [(m["model_name"], m["max_context_length"]) for m in models] == [("a/b", 64), ("c", 64)]
        raw.http.close()


def test_a_port_that_is_taken_is_named(server: ServerProcess, state_dir: Path) -> None:
    port = server.url.rpartition(":")[2]
    command = [
        sys.executable,
        "-m",
        "evsys_sdk",
        "serve",
        "--model",
        "x",
        "--state-dir",
        str(state_dir),
        "--port",
        port,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert port in done.stderr
    assert "Traceback" not in done.stderr
