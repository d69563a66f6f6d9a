"""The `logs/` tree: what is in it, that a resume leaves no trace, and that the conclusion hides nothing."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.observers.callbacks.local_logger import LocalLogger
from evsys_sdk.protocols import RunResult
from evsys_sdk.record.run_files.checkpoints import Checkpoint, CheckpointLog
from evsys_sdk.training.callback import EvalRecord, RunControl

if TYPE_CHECKING:
    from .conftest import MakeInfo

ROWS = [{"prompt": "1+1", "answer": "2"}, {"prompt": "2+2", "answer": "4"}]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(
    make_info: MakeInfo, run_dir: Path, steps: range, *, result: RunResult | None, control: RunControl | None = None
) -> None:
    callback = LocalLogger()
    callback.on_run_start(make_info(run_dir=run_dir, steps_done=steps.start - 1), control or RunControl())
    callback.on_data(ROWS)
    for step in steps:
        callback.on_step(step, {"loss": 1 / step, "time/step_s": float(id(callback))})
        if step % 2 == 0:
            predictions = [{"task_id": "a", "reward": 1.0}, {"task_id": "b", "reward": 0.0}]
            callback.on_eval(EvalRecord("arithmetic", "val", step, {"pass@1": step / 10}, predictions))
            name = f"step{step:06d}"
            CheckpointLog.in_dir(run_dir).append(Checkpoint(name, next_step=step, state="s", sampler="p"))
            callback.on_checkpoint({"name": name, "step": step, "final": step == 10})
    if result is not None:
        callback.on_eval(EvalRecord("held_out", "test", steps[-1], {"pass@1": 0.75}))
        callback.on_run_end(result)
    callback.close()


def tree(run_dir: Path) -> dict[str, bytes]:
    """Everything but what measures the machine."""
    folder = run_dir / "logs"
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "timing.jsonl")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_tree_is_organised_by_concern(make_info: MakeInfo, tmp_path: Path) -> None:
    run(make_info, tmp_path, range(1, 5), result=RunResult("arm-a", "completed"))
    logs = tmp_path / "logs"
    assert {str(path.relative_to(logs)) for path in logs.rglob("*") if path.is_file()} == {
        "hypothesis.md",
        "conclusion.md",
        "data/training_data.jsonl",
        "training/metrics.jsonl",
        "training/timing.jsonl",
        "validation/metrics.jsonl",
        "validation/rollouts.jsonl",
        "test/metrics.jsonl",
    }
    assert lines(logs / "data/training_data.jsonl") == ROWS
    assert lines(logs / "training/metrics.jsonl")[1] == {"step": 2, "loss": 0.5}
    assert lines(logs / "validation/metrics.jsonl") == [
        {"step": 2, "name": "arithmetic", "split": "val", "pass@1": 0.2},
        {"step": 4, "name": "arithmetic", "split": "val", "pass@1": 0.4},
    ]
    first = {"step": 2, "name": "arithmetic", "task_id": "a", "reward": 1.0}
    assert lines(logs / "validation/rollouts.jsonl")[0] == first
    assert (logs / "hypothesis.md").read_text(encoding="utf-8") == (
        "# Hypothesis of experiment `arithmetic`\n\nIt learns.\n"
    )


def test_a_resumed_run_leaves_the_same_tree_as_an_undisturbed_one(make_info: MakeInfo, tmp_path: Path) -> None:
    result = RunResult("arm-a", "completed", metrics={"final_loss": 0.1})
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run(make_info, whole, range(1, 11), result=result)
    run(make_info, resumed, range(1, 8), result=None)
    with (resumed / "logs/validation/rollouts.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "na')
    run(make_info, resumed, range(7, 11), result=result)
    assert tree(resumed) == tree(whole)


def test_a_conclusion_of_an_earlier_attempt_does_not_outlive_the_resume(make_info: MakeInfo, tmp_path: Path) -> None:
    run(make_info, tmp_path, range(1, 4), result=RunResult("arm-a", "failed", error="out of memory"))
    assert (tmp_path / "logs/conclusion.md").exists()
    with closing(LocalLogger()) as resumed:
        resumed.on_run_start(make_info(run_dir=tmp_path, steps_done=2), RunControl())
    assert not (tmp_path / "logs/conclusion.md").exists()


def test_the_conclusion_of_a_completed_run(make_info: MakeInfo, tmp_path: Path) -> None:
    result = RunResult("arm-a", "completed", metrics={"final_loss": 0.1}, artifacts={"best_checkpoint": "step000008"})
    run(make_info, tmp_path, range(1, 11), result=result)
    assert (
        (tmp_path / "logs/conclusion.md").read_text(encoding="utf-8")
        == """\
# Conclusion of run `arm-a`: completed

It completed after 10 of 10 steps.

## Last scores

| split | benchmark | step | metric | value |
|---|---|---|---|---|
| test | held_out | 10 | pass@1 | 0.75 |
| val | arithmetic | 10 | pass@1 | 1 |

## Result

| metric | value |
|---|---|
| final_loss | 0.1 |

This page is about one run of experiment `arithmetic`; one run alone does not decide a hypothesis.
"""
    )


def test_the_conclusion_of_a_failed_run_says_why_and_what_is_missing(make_info: MakeInfo, tmp_path: Path) -> None:
    callback = LocalLogger()
    callback.on_run_start(make_info(run_dir=tmp_path, hypothesis=None), RunControl())
    callback.on_step(1, {"loss": float("nan")})
    callback.on_run_end(RunResult("arm-a", "failed", error="TrainingError: loss became nan\nLower learning_rate."))
    callback.close()
    text = (tmp_path / "logs/conclusion.md").read_text(encoding="utf-8")
    assert text.startswith("# Conclusion of run `arm-a`: failed\n\nIt failed after 1 of 10 steps. Nothing was scored")
    assert "    TrainingError: loss became nan\n    Lower learning_rate.\n" in text
    assert "None was given" in (tmp_path / "logs/hypothesis.md").read_text(encoding="utf-8")


def test_the_conclusion_tells_of_an_early_stop(make_info: MakeInfo, tmp_path: Path) -> None:
    control = RunControl()
    control.stop("early_stopping: loss did not improve on 0.5 (step 2) 3 times in a row")
    run(make_info, tmp_path, range(1, 6), result=RunResult("arm-a", "completed"), control=control)
    text = (tmp_path / "logs/conclusion.md").read_text(encoding="utf-8")
    assert "It completed after 5 of 10 steps. It was stopped before its planned end: early_stopping: loss" in text


def test_secrets_in_an_error_do_not_reach_the_conclusion(
    make_info: MakeInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tk-0123456789")
    run(make_info, tmp_path, range(1, 2), result=RunResult("arm-a", "failed", error="401 for key tk-0123456789"))
    assert "401 for key [redacted]" in (tmp_path / "logs/conclusion.md").read_text(encoding="utf-8")


def test_scores_of_training_rows_have_their_own_folder(make_info: MakeInfo, tmp_path: Path) -> None:
    callback = LocalLogger()
    callback.on_run_start(make_info(run_dir=tmp_path), RunControl())
    callback.on_eval(EvalRecord("rows", "train_fit", 3, {"exact_match": 1.0}))
    callback.on_eval(EvalRecord("odd", "../odd split", 3, {"exact_match": 1.0}))
    callback.close()
    assert lines(tmp_path / "logs/train_fit/metrics.jsonl")[0]["exact_match"] == 1.0
    assert lines(tmp_path / "logs/_odd_split/metrics.jsonl")[0]["split"] == "../odd split"


def test_data_of_later_stages_is_added(make_info: MakeInfo, tmp_path: Path) -> None:
    for _ in range(2):  # the second time is a resume, which brings the same rows again
        callback = LocalLogger()
        callback.on_run_start(make_info(run_dir=tmp_path), RunControl())
        callback.on_data(ROWS[:1])
        callback.on_data(ROWS[1:])
        callback.close()
    assert lines(tmp_path / "logs/data/training_data.jsonl") == ROWS


def test_copies_can_be_turned_off(make_info: MakeInfo, tmp_path: Path) -> None:
    callback = LocalLogger(training_data=False, predictions=False)
    callback.on_run_start(make_info(run_dir=tmp_path), RunControl())
    callback.on_data(ROWS)
    callback.on_eval(EvalRecord("", "val", 1, {"pass@1": 1.0}, [{"reward": 1.0}]))
    callback.close()
    assert not (tmp_path / "logs/data").exists()
    assert [path.name for path in (tmp_path / "logs/validation").iterdir()] == ["metrics.jsonl"]


def test_a_folder_that_cannot_be_written_stops_the_run_with_a_remedy(make_info: MakeInfo, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be written.*Check the permissions"):
        LocalLogger().on_run_start(make_info(run_dir=tmp_path), RunControl())
