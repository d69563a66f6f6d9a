"""`evsys validate --deep` refuses what could only fail after the training was paid for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.data.types import HarborTask

type Make = Callable[..., HarborTask]

CONFIG = """
name: checked
metadata:
  hypothesis: none
  benchmark: [{ path: "PATH", tags: [test], ENTRY }]
run:
  name: r0
  data: { rows: [{ messages: [{ role: user, content: a }, { role: assistant, content: b }] }] }
  model: { name: tiny }
  algorithm: { kind: sft }
  backend: { kind: mock }
"""


def validate(folder: Path, path: object, entry: str, capsys: pytest.CaptureFixture[str]) -> str:
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("PATH", str(path)).replace("ENTRY", entry), encoding="utf-8")
    assert main(["validate", str(config), "--deep"]) == 1
    return capsys.readouterr().err


def test_a_task_that_needs_a_container_is_refused_with_bwrap(
    make_folder: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(dockerfile="FROM debian\n").metadata["task_dir"]
    report = validate(tmp_path, folder, "engine: harbor, environment: { kind: bwrap }", capsys)
    assert "needs a container (Dockerfile), which environment 'bwrap' cannot build" in report


def test_a_folder_that_leads_out_of_itself_is_refused(
    make_folder: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(make_folder().metadata["task_dir"])
    (folder / "tests" / "more").symlink_to("/etc")
    report = validate(tmp_path, folder, "engine: harbor, environment: { kind: bwrap }", capsys)
    assert "more: is a symbolic link to a place outside" in report


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("assert (", "is not Python"),
        ("def test_it(fixture): pass", "there are no fixtures here"),
        ("", "Give the tests"),
    ],
)
def test_tests_that_cannot_be_judged_are_refused(
    test: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier = {"kind": "in_process", "fn_name": "python_tests", "expected": [test]}
    row = {"task_id": "one", "instruction": "write it", "verifier": verifier}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    report = validate(tmp_path, tmp_path / "tasks.jsonl", "environment: { kind: bwrap }", capsys)
    assert "task 'one'" in report
    assert reason in report
