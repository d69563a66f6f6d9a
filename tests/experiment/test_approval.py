"""An experiment that needs an approval spends nothing until a person has approved it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ConfigError, Experiment, ExperimentConfig, ExperimentResult
from evsys_sdk.cli.main import main
from evsys_sdk.record.approvals import decide_approval as decide
from evsys_sdk.record.approvals import list_awaited as is_awaited
from evsys_sdk.record.events import Kind, read_events

ROWS = [{"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]} for w in "abcdefgh"]


def config(folder: Path) -> ExperimentConfig:
    run: dict[str, Any] = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": ROWS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 2, "batch_size": 4}},
        "backend": {"kind": "mock"},
    }
    budget = {"usd": 1.0, "needs_approval": True}
    return ExperimentConfig.model_validate({"name": "dear", "output_dir": str(folder), "run": run, "budget": budget})


class Waiting:
    """An experiment on a separate thread, which waits."""

    def __init__(self, folder: Path) -> None:
        self.results: list[ExperimentResult] = []
        self._thread = threading.Thread(target=lambda: self.results.append(Experiment(config(folder)).run()))
        self._thread.start()
        self.folder = folder / "dear"
        until = time.monotonic() + 60
        while not (self.folder.exists() and is_awaited(self.folder)):
            assert time.monotonic() < until
            time.sleep(0.02)

    def result(self) -> ExperimentResult:
        self._thread.join(60)
        return self.results[0]


def kinds(folder: Path) -> list[str]:
    return [event.kind for event in read_events(folder)]


def test_nothing_is_run_before_it_is_approved(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    assert Kind.ARM_STARTED not in kinds(waiting.folder)
    decide(waiting.folder, approve=True, author="ann")
    assert waiting.result().status == "completed"
    event_kinds = kinds(waiting.folder)
    assert event_kinds.index(Kind.APPROVED) < event_kinds.index(Kind.ARM_STARTED)


def test_what_is_rejected_is_not_run_and_is_asked_anew(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    assert main(["approve", str(waiting.folder), "--reject", "--reason", "too dear"]) == 0
    result = waiting.result()
    assert (result.status, result.arms) == ("interrupted", [])
    assert Kind.ARM_STARTED not in kinds(waiting.folder)
    again = Waiting(tmp_path)
    assert main(["approve", str(again.folder)]) == 0
    assert again.result().status == "completed"


def test_what_was_approved_is_not_asked_again(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    decide(waiting.folder, approve=True)
    waiting.result()
    assert Experiment(config(tmp_path)).run(resume=True).status == "completed"
    assert kinds(waiting.folder).count(Kind.APPROVAL_AWAITED) == 1


def test_who_does_not_wait_cannot_be_approved(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path)
    decide(waiting.folder, approve=True)
    waiting.result()
    with pytest.raises(ConfigError, match="no approval is awaited here"):
        decide(waiting.folder, approve=True)
