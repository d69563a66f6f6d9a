"""`evsys run --detach`, `status`, `attach` and `cancel` of processes that outlive the command that began them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

pytestmark = pytest.mark.e2e

CONFIG = """\
name: {name}
output_dir: outputs
run:
  name: r
  data: {{ path: rows.jsonl, transforms: [{{ kind: jsonl_to_chat }}] }}
  model: {{ name: tiny }}
  algorithm: {{ kind: sft, params: {{ max_steps: {steps}, batch_size: 3, save_every: 2 }} }}
  backend: {{ kind: mock, params: {{ latency_ms: {latency_ms} }} }}
"""
ENDLESS = {"steps": 100_000, "latency_ms": 20}


class Commands:
    """Calls evsys and keeps what it prints; every experiment that was started is ended with the test."""

    def __init__(self) -> None:
        self.err = ""
        self.started: list[int] = []

    def __call__(self, *arguments: str) -> tuple[int, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments])
        self.err = err.getvalue()
        return code, out.getvalue()

    def json(self, *arguments: str) -> tuple[int, Any]:
        code, out = self(*arguments, "--json")
        return code, json.loads(out)

    def start(self, name: str, *, steps: int, latency_ms: int = 0) -> int:
        config = Path(f"{name}.yaml")
        config.write_text(CONFIG.format(name=name, steps=steps, latency_ms=latency_ms), "utf-8")
        command = [sys.executable, "-m", "evsys_sdk", "run", str(config), "--detach", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        pid = json.loads(done.stdout)["pid"]
        self.started.append(pid)
        return pid


@pytest.fixture
def evsys(tmp_path: Path) -> Iterator[Commands]:
    rows = [{"prompt": word, "completion": word.upper()} for word in ("ash", "bay", "elm", "fir", "oak", "yew")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    commands = Commands()
    yield commands
    for pid in commands.started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_what_runs_is_shown_and_can_be_stopped(evsys: Commands) -> None:
    pid = evsys.start("long", **ENDLESS)
    until = time.monotonic() + 120
    while not any(arm["step"] for arm in evsys.json("status", "long")[1]["arms"]):
        assert time.monotonic() < until, evsys.err
        time.sleep(0.1)
    code, found = evsys.json("status")
    assert code == 0
    assert [(process["pid"], process["state"]) for process in found["running"]] == [(pid, "running")]
    code, out = evsys("status", "long")
    assert code == 0
    assert f"running by process {pid}" in out
    for _ in range(600):  # on a busy machine the first step may take a while
        if any(arm["step"] for arm in evsys.json("status", "long")[1]["arms"]):
            break
        time.sleep(0.1)
    code, outcome = evsys.json("cancel", "long")
    assert code == 0
    assert {key: outcome[key] for key in ("was_running", "stopped", "killed")} == {
        "was_running": True,
        "stopped": True,
        "killed": False,
    }
    assert evsys.json("status")[1]["running"] == []
    code, stopped = evsys.json("status", "long")
    assert (code, stopped["state"]) == (0, "interrupted")
    [arm] = stopped["arms"]
    assert arm["step"] >= 1
    assert evsys("cancel", "long")[1].strip().endswith("is not running.")


def test_attach_tells_all_from_the_beginning_and_ends_with_the_experiment(evsys: Commands) -> None:
    evsys.start("short", steps=12, latency_ms=5)
    code, found = evsys.json("attach", "short")
    assert (code, found["state"]) == (0, "completed")
    assert [(arm["state"], arm["step"]) for arm in found["arms"]] == [("completed", 12)]
    assert "12" in evsys.err
    err = evsys.err
    assert evsys.json("attach", "short")[0] == 0
    assert evsys.err == err, "who comes late hears the same"


def test_attach_passes_the_outcome_on(evsys: Commands) -> None:
    evsys.start("stopped", **ENDLESS)
    assert evsys("cancel", "stopped")[0] == 0
    assert evsys("attach", "stopped")[0] == 130


def test_a_killed_experiment_is_called_killed_and_continues_with_the_same_command(evsys: Commands) -> None:
    pid = evsys.start("killed", steps=60, latency_ms=5)
    os.kill(pid, signal.SIGKILL)
    while evsys.json("status")[1]["running"]:
        pass  # its locks go with it
    code, found = evsys.json("status", "killed")
    assert (code, found["state"]) == (0, "killed")
    assert evsys("status", "killed")[0] == 0
    assert "Run the same command again" in evsys.err
    evsys.start("killed", steps=60, latency_ms=0)
    assert evsys.json("attach", "killed")[1]["state"] == "completed"


def test_started_twice_it_runs_twice_in_their_own_folders(evsys: Commands) -> None:
    both = [evsys.start("twice", **ENDLESS), evsys.start("twice", **ENDLESS)]
    running = evsys.json("status")[1]["running"]
    assert {process["pid"] for process in running} == set(both)
    assert len({process["path"] for process in running}) == 2
    for process in running:
        assert evsys("cancel", process["path"])[0] == 0
    assert evsys.json("status")[1]["running"] == []


@pytest.mark.parametrize("verb", ["status", "attach", "cancel"])
def test_an_experiment_that_does_not_exist_is_named(verb: str, evsys: Commands) -> None:
    code, _ = evsys(verb, "nothing")
    assert code == 1
    assert "nothing" in evsys.err
    assert "Traceback" not in evsys.err


def test_nothing_running_says_where_to_look(evsys: Commands) -> None:
    code, out = evsys("status")
    assert code == 0
    assert "evsys history" in out
