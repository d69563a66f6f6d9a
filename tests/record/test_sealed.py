"""Task files in use are copied: a changed one is reported by the next command, and can be restored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.record.project_files.sealed import find_changed, seal_files

CONFIG = """
name: sealed
output_dir: outputs
metadata:
  benchmark:
    - {name: unseen, path: data/benchmark/unseen, split: test, max_tokens: 4}
run:
  name: a
  data:
    path: train.jsonl
    transforms: [{kind: jsonl_to_chat, params: {user_template: "{q}", assistant_template: "{a}"}}]
  model: {name: tiny}
  algorithm: {kind: sft, params: {max_steps: 1}}
  backend: {kind: mock}
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a benchmark in a project."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".evsys").mkdir()
    rows = [json.dumps({"q": f"what {number}", "a": str(number % 3)}) for number in range(8)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "c.yaml").write_text(CONFIG, encoding="utf-8")
    file = tmp_path / "data/benchmark/unseen/tasks.jsonl"
    file.parent.mkdir(parents=True)
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": "1"}
    lines = [
        json.dumps({"task_id": f"t{number}", "instruction": f"q {number}", "verifier": verifier}) for number in "12"
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def remove_all(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": lambda file: file.write_text(file.read_text().replace('"1"', '"2"'), encoding="utf-8"),
    "emptied": lambda file: file.write_bytes(b""),
    "replaced": lambda file: file.with_name("t").replace(file) if file.with_name("t").write_text("{}") else None,
    "removed": remove_all,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_task_file_is_reported_and_restored(
    change: str, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tasks.read_bytes()
    assert main(["run", "c.yaml", "--quiet"]) == 0
    assert "this task file" not in capsys.readouterr().err
    CHANGES[change](tasks)
    for command in (["validate", "c.yaml"], ["audit", "sealed"], ["plan", "c.yaml"]):
        main(command)
        assert "data/benchmark/unseen/tasks.jsonl: this task file" in capsys.readouterr().err, command
    assert main(["benchmark", "restore", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"restored": ["data/benchmark/unseen/tasks.jsonl"], "lost": []}
    assert tasks.read_bytes() == before
    assert main(["validate", "c.yaml"]) == 0
    assert "this task file" not in capsys.readouterr().err


def test_new_content_is_accepted_only_when_someone_confirms_it(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "c.yaml", "--quiet"]) == 0
    CHANGES["edited"](tasks)
    main(["run", "c.yaml", "--quiet"])
    assert "this task file" in capsys.readouterr().err
    assert [change.path for change in find_changed()] == ["data/benchmark/unseen/tasks.jsonl"]
    assert main(["benchmark", "restore", "--keep", str(tasks.parent)]) == 0
    assert find_changed() == []


def test_what_has_no_copy_any_more_is_named(tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seal_files([tasks])
    CHANGES["edited"](tasks)
    [changed] = find_changed()
    changed.copy.unlink()
    assert main(["benchmark", "restore"]) == 1
    assert "gone or damaged" in capsys.readouterr().err
