"""The example of a loop, rehearsed on the mock backend: its traces are decided on, and its round is shipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.loop.decider import decide
from evsys_sdk.loop.system import load_system

SYSTEM = "examples/22_loop/system.yaml"


@pytest.fixture
def rehearsal(project: Path, examples: Path) -> Path:
    template = examples / "22_loop/template.yaml"
    text = template.read_text("utf-8")
    for real, mock in (("kind: local", "kind: mock"), ("outputs/models/SmolLM2-135M-Instruct", "tiny")):
        assert real in text
        text = text.replace(real, mock)
    template.write_text(text, "utf-8")
    return project


def make_traces(period: int) -> None:
    subprocess.run([sys.executable, "examples/22_loop/make_traces.py", str(period)], check=True)


def test_its_traces_are_a_reason_to_learn(rehearsal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_traces(1)
    assert main(["trigger", "run", SYSTEM]) == 0
    assert "0 new traces" in capsys.readouterr().out  # the inbox is emptied by the loop
    assert main(["traces", "import", "outputs/router/inbox/period-1.jsonl", "--name", "router"]) == 0
    decision = decide(load_system(SYSTEM))
    assert decision.learn
    assert (decision.new, len(decision.aside)) == (160, 0)


@pytest.mark.slow
def test_both_periods_are_learned(rehearsal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for period in (1, 2):
        make_traces(period)
        assert main(["loop", SYSTEM]) == 0
    out = capsys.readouterr().out
    assert "round 1   scaffold   round-1.yaml, from the base model." in out
    assert "round 2   decide     yes" in out
    assert "round 2   experiment router-round-2: completed." in out
