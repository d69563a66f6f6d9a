"""Run folders of tinker-cookbook in the record, read as that package writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main


def write_run(folder: Path, rows: list[dict[str, Any]], *, final: bool = True, **config: Any) -> Path:
    """What its loggers leave: the same keys, and a step that a resumed run has written twice."""
    folder.mkdir(parents=True)
    fields = {"model_name": "Qwen/Qwen3-8B", "learning_rate": 1e-4, "log_path": "/x/y", **config}
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    saved = {"name": "final" if final else "000010", "batch": 3, "state_path": "tinker://r/weights/1"}
    (folder / "checkpoints.jsonl").write_text(json.dumps(saved | {"sampler_path": "tinker://r/s/1"}) + "\n", "utf-8")
    return folder


def metrics(*losses: float) -> list[dict[str, Any]]:
    rows = [{"step": at, "train_mean_nll": loss, "time/total": 1.5, "note": "x"} for at, loss in enumerate(losses)]
    return [*rows, rows[-1], {"test/nll": 0.5}]


def test_folders_become_runs_that_history_and_compare_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run(tmp_path / "low", metrics(3.0, 2.0, 1.0))
    other = write_run(tmp_path / "high", metrics(3.0, 2.5), final=False, learning_rate=1e-3)
    assert main(["import", str(run_dir), str(other), "--name", "cookbook", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert [run["run_id"] for run in parsed["runs"]] == ["low", "high"]
    assert (parsed["runs"][0]["metrics"]["final_loss"], parsed["runs"][0]["metrics"]["steps"]) == (1.0, 3.0)
    assert parsed["runs"][0]["metrics"]["test/nll"] == 0.5
    assert parsed["runs"][0]["artifacts"]["final_sampler"] == "tinker://r/s/1"
    assert "may not have ended" in parsed["runs"][1]["extras"]["stop_reason"]
    lines = Path("outputs/cookbook/low/logs/metrics.jsonl").read_text("utf-8").splitlines()
    assert [row["loss"] for line in lines if "loss" in (row := json.loads(line))] == [3.0, 2.0, 1.0]
    assert main(["history", "--json"]) == 0
    listed = capsys.readouterr().out
    assert "cookbook" in listed
    assert "Qwen/Qwen3-8B" in listed
    assert "imported" in listed


def test_what_is_no_run_or_there_already_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["import", str(tmp_path / "empty")]) == 1
    assert "config.json" in capsys.readouterr().err
    run_dir = write_run(tmp_path / "one", metrics(1.0, 0.5))
    assert main(["import", str(run_dir)]) == 0
    assert main(["import", str(run_dir)]) == 1
    assert "Choose another name" in capsys.readouterr().err
    (run_dir / "metrics.jsonl").write_text('{"step": 0}\n{"step"\n', "utf-8")
    assert main(["import", str(run_dir), "--name", "two"]) == 1
    assert "metrics.jsonl:2: this is not JSON" in capsys.readouterr().err
