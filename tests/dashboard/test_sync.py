"""What was not sent is sent later, by another process or from a copied folder, and never twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import DashboardClient
from evsys_sdk.cli.main import main
from evsys_sdk.dashboard.client.mirror import streams

from .conftest import report_to
from .stand_in import StandIn
from .test_client import NOBODY, mirrored


def log_something(steps: int = 20) -> None:
    with DashboardClient() as client:
        run = client.create_run(client.create_experiment("e"))
        for step in range(steps):
            client.log_step_metric(run, step, {"loss": 0.0})


def sync(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["sync", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def left(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two streams that were written while there was no server."""
    report_to(monkeypatch, NOBODY, tmp_path)
    log_something()
    monkeypatch.setenv("EVSYS_OFFLINE", "1")
    log_something(5)
    monkeypatch.delenv("EVSYS_OFFLINE")
    monkeypatch.setenv("EVSYS_API_URL", stand_in.url)
    return stand_in


def test_what_is_left_is_sent_once(left: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = sync(capsys)
    assert (code, [stream["new"] for stream in report["streams"]]) == (0, [23, 8])
    assert left.records() == mirrored(tmp_path / ".evsys" / "dashboard")
    assert sync(capsys) == (0, {"streams": []})
    code, report = sync(capsys, "--again")
    assert (code, [stream["new"] for stream in report["streams"]]) == (0, [0, 0])
    assert left.records() == mirrored(tmp_path / ".evsys" / "dashboard")


def test_a_copied_folder_can_be_sent_from_anywhere(
    left: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "another machine"
    shutil.copytree(tmp_path / ".evsys", elsewhere / "copy" / ".evsys")
    monkeypatch.chdir(elsewhere)
    assert sync(capsys, "copy")[0] == 0
    monkeypatch.chdir(tmp_path)
    assert [stream["new"] for stream in sync(capsys)[1]["streams"]] == [0, 0]
    assert left.records() == mirrored(tmp_path / ".evsys" / "dashboard")


def test_a_stream_that_was_interrupted_half_way_continues_where_it_was(
    left: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [first, _] = streams(tmp_path / ".evsys" / "dashboard")
    lines = first.read_bytes().splitlines()
    left.take(first.stem, 0, b"\n".join(lines[:7]))
    assert [stream["new"] for stream in sync(capsys)[1]["streams"]] == [16, 8]
    assert left.records() == mirrored(tmp_path / ".evsys" / "dashboard")


def test_another_server_gets_everything_although_the_first_has_it(
    left: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(capsys)
    with StandIn() as other:
        monkeypatch.setenv("EVSYS_API_URL", other.url)
        assert [stream["new"] for stream in sync(capsys)[1]["streams"]] == [23, 8]
        assert other.records() == left.records()


def test_a_stream_of_another_project_is_left_alone_and_the_others_are_sent(
    left: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVSYS_PROJECT_ID", "other")
    code, report = sync(capsys)
    assert code == 1
    assert all("project 'demo'" in stream["problem"] for stream in report["streams"])
    assert left.records() == []


@pytest.mark.parametrize("content", ["", "not json\n", '{"kind": "step"}\n', '{"kind": "stream", "stream": "x"}\n'])
def test_a_file_that_is_no_stream_is_named_and_the_others_are_sent(
    left: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / ".evsys" / "dashboard" / "000.jsonl").write_text(content, "utf-8")
    code, report = sync(capsys)
    assert code == 1
    assert "no stream" in report["streams"][0]["problem"]
    assert [stream["new"] for stream in report["streams"][1:]] == [23, 8]


def test_without_a_server_the_command_reports_it_in_a_sentence(
    left: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVSYS_API_URL", NOBODY)
    assert main(["sync"]) == 1
    printed = capsys.readouterr()
    assert "cannot be reached" in printed.err
    assert "Traceback" not in printed.err


def test_a_place_without_a_mirror_is_an_error_and_a_project_without_one_is_not(
    at_stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", str(tmp_path)]) == 1
    assert "no mirror" in capsys.readouterr().err
    assert sync(capsys) == (0, {"streams": []})


def test_a_killed_client_loses_nothing_that_a_call_returned_for(
    at_stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = """
import os, signal, sys
from evsys_sdk import DashboardClient
client = DashboardClient()
run = client.create_run(client.create_experiment("e"))
for step in range(100_000):
    client.log_step_metric(run, step, loss=0.0)
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ.copy(), text=True
    )
    assert process.stdout
    acknowledged = -1
    for line in process.stdout:
        acknowledged = int(line)
        if acknowledged == 777:
            process.send_signal(signal.SIGKILL)
            break
    acknowledged = max([acknowledged, *(int(line) for line in process.stdout.read().split()[:-1])])
    process.wait()
    process.stdout.close()
    assert sync(capsys)[0] == 0
    steps = [record["line"]["step"] for record in at_stand_in.records("step")]
    assert steps == list(range(len(steps)))
    assert len(steps) > acknowledged


def test_a_recorded_experiment_is_reported_whole(
    at_stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.history.recorded import write_experiment

    folder = write_experiment(tmp_path / "outputs", "routing", seeds=(1,))
    code, report = sync(capsys, str(folder))
    assert (code, report["experiment"]) == (0, "routing-0a1b2c3d")
    assert at_stand_in.records("experiment")[0]["set"]["conclusion"]["verdict"] == "inconclusive"
    assert {record["set"].get("name") for record in at_stand_in.records("run")} >= {"base", "changed"}
    assert len(at_stand_in.records("step")) == 20
    assert at_stand_in.records("event")[0]["event"]["kind"] == "experiment_started"


def test_reporting_a_folder_again_changes_neither_when_a_run_began_nor_its_config(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from evsys_sdk import Experiment

    from .test_evsys_logger import config

    def known() -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for record in stand_in.records("run"):
            fields |= record["set"]
        return {name: fields[name] for name in ("name", "started", "config", "status", "seed")}

    report_to(monkeypatch, stand_in.url, tmp_path)
    folder = Experiment(config()).run().path
    before = known()
    assert before["config"]["name"] == "sft"
    assert sync(capsys, str(folder))[0] == 0
    assert known() == before
