"""A run reports itself to the dashboard; no server, however broken, changes what it does."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import Experiment
from evsys_sdk.config import ExperimentConfig
from evsys_sdk.errors import TrainingError

from .conftest import report_to
from .stand_in import KEY, StandIn
from .test_client import NOBODY


def config(steps: int = 4, **changes: Any) -> ExperimentConfig:
    rows, held_out = (
        [
            {"messages": [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": f"a{at % 3}"}]}
            for at in range(first, first + 12)
        ]
        for first in (0, 12)
    )
    values: dict[str, Any] = {
        "name": "reported",
        "output_dir": "outputs",
        "metadata": {"hypothesis": "It is reported.", "tags": ["t"]},
        "run": {
            "name": "sft",
            "data": {"source_kind": "in_memory", "rows": rows},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": steps}},
            "backend": {"kind": "mock"},
            "eval": {"metrics": [{"kind": "exact_match"}], "eval_data": {"source_kind": "in_memory", "rows": held_out}},
        },
        "callbacks": [{"kind": "evsys_logger"}],
    }
    return ExperimentConfig.model_validate(values | changes)


def test_steps_scores_predictions_hypothesis_and_conclusion_are_reported(at_stand_in: StandIn) -> None:
    result = Experiment(config()).run()
    assert result.status == "completed"
    assert [record["line"]["step"] for record in at_stand_in.records("step")] == [1, 2, 3, 4]
    assert at_stand_in.records("experiment")[0]["set"]["hypothesis"] == "It is reported."
    assert at_stand_in.records("score")[0]["line"]["split"] == "eval"
    assert len(at_stand_in.records("rollouts")[0]["rows"]) == 12
    ended = [record["set"] for record in at_stand_in.records("run") if record["set"].get("status") == "completed"]
    assert ended[0]["metrics"]["steps"] == 4
    final = at_stand_in.records("experiment")[-1]["set"]
    assert (final["status"], final["conclusion"]["verdict"]) == (
        "completed",
        json.loads(Path("outputs/reported/conclusion.json").read_text("utf-8"))["verdict"],
    )
    assert final["conclusion_text"].startswith("#")
    kinds = [record["event"]["kind"] for record in at_stand_in.records("event")]
    assert kinds[0] == "experiment_started"
    assert kinds[-1] == "experiment_ended"
    assert all(KEY not in path.read_text("utf-8", "ignore") for path in Path("outputs").rglob("*.json*"))


def test_a_run_that_is_reported_is_the_same_run(at_stand_in: StandIn, tmp_path: Path) -> None:
    reported = Experiment(config()).run().arms[0].metrics
    silent = Experiment(config(callbacks=[], name="silent")).run().arms[0].metrics
    assert reported == silent


@pytest.mark.parametrize("answer", [401, 403, 422, 500])
def test_a_server_that_refuses_or_fails_changes_nothing_but_a_warning(
    at_stand_in: StandIn, caplog: pytest.LogCaptureFixture, answer: int
) -> None:
    at_stand_in.answer_with = answer
    assert Experiment(config()).run().status == "completed"
    assert str(answer) in caplog.text
    assert KEY not in caplog.text


def test_an_unreachable_server_changes_nothing_but_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    report_to(monkeypatch, NOBODY, tmp_path)
    assert Experiment(config()).run().status == "completed"
    assert caplog.text.count("cannot be reached") == 1


def test_a_mirror_that_cannot_be_written_stops_the_run_before_anything_is_spent(
    at_stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("EVSYS_LOG_DIR", str(tmp_path / "file"))
    result = Experiment(config()).run()
    assert result.arms[0].status == "failed"
    assert "cannot be written" in str(result.arms[0].result.error)


def test_without_a_key_the_run_does_not_start_and_offline_it_does(
    at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVSYS_API_KEY")
    result = Experiment(config()).run()
    assert "EVSYS_API_KEY" in str(result.arms[0].result.error)
    assert "EVSYS_OFFLINE" in str(result.arms[0].result.error)
    monkeypatch.setenv("EVSYS_OFFLINE", "1")
    assert Experiment(config(name="offline")).run().status == "completed"
    assert at_stand_in.records() == []


def test_a_stop_that_somebody_asks_for_ends_the_run(at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from evsys_sdk.dashboard.client import evsys_logger

    event = threading.Event()
    take = evsys_logger.EvsysLogger._take_request

    def tell(self: Any, request: Any) -> None:
        take(self, request)
        at_stand_in.requests = []
        event.set()

    step = evsys_logger.EvsysLogger.on_step

    def wait(self: Any, number: int, metrics: Any) -> None:
        step(self, number, metrics)
        if number == 2:
            at_stand_in.requests = [{"id": "q", "kind": "stop", "reason": "enough"}]
            self._client.log_step_metric(self._run_id, number, metrics)
            assert event.wait(60)

    monkeypatch.setattr(evsys_logger.EvsysLogger, "_take_request", tell)
    monkeypatch.setattr(evsys_logger.EvsysLogger, "on_step", wait)
    result = Experiment(config(steps=500)).run()
    assert (result.status, result.arms[0].status) == ("interrupted", "cancelled")
    assert max(record["line"]["step"] for record in at_stand_in.records("step")) < 10
    assert at_stand_in.records("answer")[0]["state"] == "taken"


def test_a_resumed_run_takes_back_the_steps_it_repeats(at_stand_in: StandIn, tmp_path: Path) -> None:
    from evsys_sdk.dashboard.client.evsys_logger import EvsysLogger
    from evsys_sdk.training.callback import RunControl, RunInfo

    logger = EvsysLogger()
    info = RunInfo("e", "r", tmp_path / "outputs" / "e" / "r", {"name": "r", "seed": 1}, total_steps=9, steps_done=5)
    logger.on_run_start(info, RunControl())
    logger.on_step(6, {"loss": 1.0})
    logger.close()
    assert at_stand_in.records("rewind") == [
        {"kind": "rewind", "run": at_stand_in.records("run")[0]["id"], "next_step": 6}
    ]


def test_a_callback_that_fails_at_the_end_does_not_undo_the_experiment(
    at_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TrainingError("no report today")

    monkeypatch.setattr("evsys_sdk.dashboard.client.evsys_logger.report_experiment", fail)
    assert Experiment(config()).run().status == "completed"
    assert "no report today" in caplog.text
