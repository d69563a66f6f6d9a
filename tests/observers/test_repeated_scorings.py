"""A scoring that overlaps training may be recorded again for a step that is done: what was there of it goes, and only
that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evsys_sdk.experiment.arms.observed_log_store import LogStoreCallback
from evsys_sdk.observers.callbacks.local_logger import LocalLogger
from evsys_sdk.observers.log_stores.jsonl import JsonlLogStore
from evsys_sdk.observers.log_stores.multiplex import MultiplexLogStore
from evsys_sdk.training.callback import Callback, EvalRecord, RunControl, RunInfo

REPEATED = EvalRecord("slow", "val", 4, {"tasks": 0.0})


def scoring(name: str, split: str, step: int) -> EvalRecord:
    return EvalRecord(name, split, step, {"pass@1": 0.5, "tasks": 2.0}, [{"task_id": "t", "prediction": "x"}])


def info(folder: Path, **changes: object) -> RunInfo:
    return RunInfo("e", "r", folder, {}, **changes)  # pyright: ignore[reportArgumentType]


def record_and_resume(callback: Callback, again: Callback, folder: Path) -> None:
    """Records four steps and their scorings, and takes the run up again after the fifth."""
    callback.on_run_start(info(folder), RunControl())
    for step in range(1, 7):
        callback.on_step(step, {"loss": 1.0})
        if step in (2, 4):
            callback.on_eval(scoring("slow", "val", step))
            callback.on_eval(scoring("other", "val", step))
            callback.on_eval(scoring("slow", "test", step))
    callback.close()
    again.on_run_start(info(folder, steps_done=5, repeats=(REPEATED,)), RunControl())
    again.close()


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_local_logger_drops_scores_and_predictions_of_it(tmp_path: Path) -> None:
    record_and_resume(LocalLogger(), LocalLogger(), tmp_path)
    expected = [(2, "slow"), (2, "other"), (4, "other")]
    for name in ("metrics", "rollouts"):
        written = lines(tmp_path / "logs" / "validation" / f"{name}.jsonl")
        assert [(line["step"], line["name"]) for line in written] == expected
    assert [line["step"] for line in lines(tmp_path / "logs" / "test" / "metrics.jsonl")] == [2, 4]
    assert [line["step"] for line in lines(tmp_path / "logs" / "training" / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def check_named_lines(found: list[dict[str, object]]) -> None:
    at_four = [set(line) - {"step"} for line in found if int(str(line["step"])) == 4]
    assert at_four == [{"loss"}, {"val/other/pass@1", "val/other/tasks"}, {"test/slow/pass@1", "test/slow/tasks"}]
    assert sum("val/slow/pass@1" in line for line in found) == 1


def test_the_log_store_drops_the_line_of_it(tmp_path: Path) -> None:
    stores: list[Any] = [JsonlLogStore(log_dir=str(tmp_path)) for _ in range(2)]
    record_and_resume(LogStoreCallback(stores[0]), LogStoreCallback(stores[1]), tmp_path)
    check_named_lines(lines(tmp_path / "metrics.jsonl"))


def test_several_log_stores_drop_the_line_of_it(tmp_path: Path) -> None:
    stores: list[Any] = [MultiplexLogStore(log_dir=str(tmp_path), children=[{"kind": "jsonl"}]) for _ in range(2)]
    record_and_resume(LogStoreCallback(stores[0]), LogStoreCallback(stores[1]), tmp_path)
    check_named_lines(lines(next(tmp_path.rglob("metrics.jsonl"))))
