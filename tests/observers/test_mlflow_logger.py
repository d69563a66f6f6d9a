"""The `mlflow_logger` callback against a stand-in for the REST API of a tracking server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.errors import EvsysAuthError, EvsysError
from evsys_sdk.experiment import Experiment
from evsys_sdk.observers.callbacks.mlflow_logger import MlflowLogger
from evsys_sdk.protocols import RunResult
from evsys_sdk.training.callback import EvalRecord, RunControl, RunInfo


class Tracker:
    """What a tracking server keeps, and how it refuses."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.refuse: tuple[int, int] = (0, 200)
        """How many further requests to answer with which status."""
        self.headers: dict[str, str] = {}
        self.url = ""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        left, status = self.refuse
        if left:
            self.refuse = (left - 1, status)
            return status, {"error_code": "INTERNAL_ERROR", "message": "not now"}
        match path.removeprefix("/api/2.0/mlflow/"):
            case "experiments/get-by-name":
                known = self.experiments.get(body["experiment_name"])
                return (200, {"experiment": {"experiment_id": known}}) if known else (404, {})
            case "experiments/create":
                self.experiments[body["name"]] = made = str(len(self.experiments) + 1)
                return 200, {"experiment_id": made}
            case "runs/create":
                made = f"run{len(self.runs)}"
                self.runs[made] = {**body, "metrics": [], "params": {}, "set": {}, "status": "RUNNING"}
                return 200, {"run": {"info": {"run_id": made}}}
            case "runs/log-batch":
                run = self.runs[body["run_id"]]
                run["metrics"] += body.get("metrics", [])
                run["params"] |= {one["key"]: one["value"] for one in body.get("params", [])}
                return 200, {}
            case "runs/set-tag":
                self.runs[body["run_id"]]["set"][body["key"]] = body["value"]
                return 200, {}
            case "runs/update":
                self.runs[body["run_id"]]["status"] = body["status"]
                return 200, {}
            case other:
                return 404, {"message": other}


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    kept = Tracker()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._reply(parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()})

        def do_POST(self) -> None:
            self._reply(self.path, json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _reply(self, path: str, body: dict[str, Any]) -> None:
            kept.headers = {key.lower(): value for key, value in self.headers.items()}
            status, answer = kept.answer(path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    yield kept
    server.shutdown()
    server.server_close()
    thread.join()


def info(tmp_path: Path, **more: Any) -> RunInfo:
    config = {"model": {"name": "tiny"}, "algorithm": {"params": {"api_key": "sk-1234567890abcdef", "rate": 0.1}}}
    return RunInfo("routing", "sft", tmp_path, config, hypothesis="It learns.", **more)


def started(tracker: Tracker, tmp_path: Path, **params: Any) -> MlflowLogger:
    logger = MlflowLogger(tracking_uri=tracker.url, **params)
    logger.on_run_start(info(tmp_path), RunControl())
    return logger


def test_a_whole_run_arrives(tracker: Tracker, tmp_path: Path) -> None:
    config = {
        "name": "routing",
        "output_dir": str(tmp_path / "outputs"),
        "callbacks": [{"kind": "mlflow_logger", "params": {"tracking_uri": tracker.url, "tags": {"team": "a"}}}],
        "run": {
            "name": "sft",
            "data": {
                "source_kind": "in_memory",
                "rows": [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}],
            },
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": 3}},
            "backend": {"kind": "mock"},
        },
    }
    assert Experiment(ExperimentConfig.model_validate(config)).run().exit_code == 0
    [run] = tracker.runs.values()
    assert (tracker.experiments, run["experiment_id"], run["run_name"]) == ({"routing": "1"}, "1", "sft")
    assert run["status"] == "FINISHED"
    assert [one["step"] for one in run["metrics"] if one["key"] == "loss"] == [1, 2, 3]
    assert run["params"]["algorithm.params.max_steps"] == "3"
    assert {"key": "team", "value": "a"} in run["tags"]
    assert "evsys.final_checkpoint" in run["set"]


def test_names_are_those_that_the_server_takes_and_secrets_stay_here(tracker: Tracker, tmp_path: Path) -> None:
    logger = started(tracker, tmp_path)
    logger.on_eval(EvalRecord("tools", "val", 5, {"pass@1": 0.5, "pass^2": 0.25}))
    logger.close()
    [run] = tracker.runs.values()
    assert [one["key"] for one in run["metrics"]] == ["val/tools/pass_at_1", "val/tools/pass_hat_2"]
    assert "sk-1234567890abcdef" not in json.dumps(run)
    assert run["params"]["algorithm.params.rate"] == "0.1"


def test_what_could_not_be_sent_is_sent_with_the_next_batch(tracker: Tracker, tmp_path: Path) -> None:
    logger = started(tracker, tmp_path, every=2)
    logger.on_step(1, {"loss": 1.0})
    tracker.refuse = (1, 500)
    with pytest.raises(EvsysError, match=r"runs/log-batch was refused by the server \(500\)"):
        logger.on_step(2, {"loss": 0.5})
    logger.on_step(3, {"loss": 0.25})
    logger.on_step(4, {"loss": 0.125})
    logger.close()
    [run] = tracker.runs.values()
    assert [one["step"] for one in run["metrics"]] == [1, 2, 3, 4]


def test_a_resumed_run_goes_on_under_its_id(tracker: Tracker, tmp_path: Path) -> None:
    first = started(tracker, tmp_path)
    first.on_run_end(RunResult("sft", "cancelled"))
    first.close()
    assert tracker.runs["run0"]["status"] == "KILLED"
    again = MlflowLogger(tracking_uri=tracker.url)
    again.on_run_start(info(tmp_path, steps_done=5), RunControl())
    assert (list(tracker.runs), tracker.runs["run0"]["status"]) == (["run0"], "RUNNING")
    again.on_run_end(RunResult("sft", "failed", error="it broke"))
    again.close()
    assert tracker.runs["run0"]["status"] == "FAILED"
    assert tracker.runs["run0"]["set"]["evsys.error"] == "it broke"


def test_no_address_no_server_and_no_permission_are_told_before_the_first_step(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(EvsysError, match="Set tracking_uri or MLFLOW_TRACKING_URI"):
        MlflowLogger().on_run_start(info(tmp_path), RunControl())
    with pytest.raises(EvsysError, match="Check the address and that the server runs"):
        MlflowLogger(tracking_uri="http://127.0.0.1:9").on_run_start(info(tmp_path), RunControl())
    tracker.refuse = (1, 401)
    with pytest.raises(EvsysAuthError, match="MLFLOW_TRACKING_TOKEN"):
        started(tracker, tmp_path)


def test_credentials_of_the_environment_are_sent(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.url)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a-token")
    logger = MlflowLogger()
    logger.on_run_start(info(tmp_path), RunControl())
    logger.close()
    assert tracker.headers["authorization"] == "Bearer a-token"
    assert tracker.headers["content-type"] == "application/json", "a real server refuses a body without it"


def test_a_loss_that_is_no_number_is_sent_as_a_word(tracker: Tracker, tmp_path: Path) -> None:
    logger = started(tracker, tmp_path, every=1)
    logger.on_step(1, {"loss": float("nan")})
    logger.close()
    assert tracker.runs["run0"]["metrics"][0]["value"] == "NaN"


def test_disabled_it_sends_nothing(tracker: Tracker, tmp_path: Path) -> None:
    logger = started(tracker, tmp_path, mode="disabled", every=1)
    logger.on_step(1, {"loss": 1.0})
    logger.on_run_end(RunResult("sft", "completed"))
    logger.close()
    assert tracker.runs == {}
