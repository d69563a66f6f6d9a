"""One reader for every question: how it is, why it ended, what its arms did, and what was said about it."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.experiment.jobs.live_status import experiment_status
from evsys_sdk.record.events import Journal, Kind
from evsys_sdk.record.folders import begin_run, note_length, write_result
from evsys_sdk.record.layout import ExperimentFiles
from evsys_sdk.record.lock import folder_lock
from evsys_sdk.record.reader import ExperimentRecord

STARTED = (Kind.STARTED, {"experiment_id": "e-1", "arms": [{"arm": "a", "run": "a", "seed": 0}, {"arm": "b"}]})
RESUMED = (Kind.RESUMED, {"experiment_id": "e-1"})


def ended(status: str) -> tuple[Kind, dict[str, Any]]:
    return Kind.ENDED, {"status": status}


def record(folder: Path, *events: tuple[Kind, dict[str, Any]]) -> ExperimentRecord:
    """An experiment with these events, whose last process is gone."""
    folder.mkdir(exist_ok=True)
    ExperimentFiles(folder).config.write_text('{"name": "e", "runs": [{"name": "a"}, {"name": "b"}]}', "utf-8")
    ExperimentFiles(folder).lock.write_text(json.dumps({"pid": 1, "host": socket.gethostname()}), "utf-8")
    with Journal.of(folder) as journal:
        for kind, payload in events:
            journal.append(kind, **payload)
    return ExperimentRecord.open(folder)


@pytest.mark.parametrize(
    ("events", "status", "finished"),
    [
        ([STARTED], "killed", False),
        ([STARTED, ended("completed")], "completed", True),
        ([STARTED, ended("failed")], "failed", True),
        ([STARTED, ended("interrupted")], "interrupted", False),
        ([STARTED, ended("budget")], "budget", False),
        ([STARTED, ended("budget"), RESUMED], "killed", False),
        ([STARTED, ended("interrupted"), RESUMED, ended("completed")], "completed", True),
        ([STARTED, ended("completed"), (Kind.NOTE, {"text": "hm"})], "completed", True),
    ],
)
def test_one_state_machine_tells_how_it_is(
    tmp_path: Path, events: list[tuple[Kind, dict[str, Any]]], status: str, finished: bool
) -> None:
    stored = record(tmp_path, *events)
    assert (stored.status, stored.is_finished) == (status, finished)
    assert experiment_status(tmp_path).state == status


def test_the_owner_of_the_lock_runs_it(tmp_path: Path) -> None:
    stored = record(tmp_path, STARTED)
    assert (stored.status, stored.owner) == ("killed", {})
    with folder_lock(tmp_path, what="it"):
        assert (stored.status, stored.owner["pid"]) == ("running", os.getpid())
    assert stored.status == "killed"


def test_a_run_on_another_machine_is_judged_by_when_it_last_wrote(tmp_path: Path) -> None:
    stored = record(tmp_path, STARTED)
    stored.files.lock.write_text(json.dumps({"pid": 7, "host": "another-machine"}), "utf-8")
    live = experiment_status(tmp_path)
    assert (live.state, live.pid, live.host) == ("running", 7, "another-machine")
    old = time.time() - 3600
    for path in (*tmp_path.iterdir(), tmp_path):
        os.utime(path, (old, old))
    assert ExperimentRecord(tmp_path).status == "killed"
    record(tmp_path, ended("completed"))
    assert ExperimentRecord(tmp_path).status == "completed"


def test_arms_wait_run_are_retried_recalled_and_end(tmp_path: Path) -> None:
    def states() -> dict[str, str]:
        return {run.name: run.status for run in ExperimentRecord(tmp_path).runs}

    record(tmp_path, STARTED)
    assert states() == {"a": "pending", "b": "pending"}
    record(tmp_path, (Kind.ARM_STARTED, {"arm": "a"}), (Kind.ARM_STARTED, {"arm": "b"}))
    assert states() == {"a": "started", "b": "started"}
    record(tmp_path, (Kind.ARM_RETRIED, {"arm": "b", "reason": "lost"}))
    assert ExperimentRecord(tmp_path).runs[1].error == "lost"
    record(tmp_path, (Kind.ARM_ENDED, {"arm": "a", "status": "completed", "metrics": {"steps": 3.0}}))
    record(tmp_path, (Kind.ARM_ENDED, {"arm": "b", "status": "failed", "error": "no"}))
    assert states() == {"a": "completed", "b": "failed"}
    record(tmp_path, RESUMED)
    assert states() == {"a": "completed", "b": "pending"}
    record(tmp_path, (Kind.ARM_RECALLED, {"arm": "a", "status": "completed"}), (Kind.ARM_STARTED, {"arm": "c__seed4"}))
    assert states() == {"a": "completed", "b": "pending", "c__seed4": "started"}
    added = ExperimentRecord(tmp_path).runs[-1]
    assert (added.run, added.seed) == ("c", 4)
    assert [arm.state for arm in experiment_status(tmp_path).arms] == ["completed", "waiting", "killed"]


def test_an_arm_tells_starts_length_scores_once_and_curves(tmp_path: Path) -> None:
    stored = record(tmp_path, STARTED)
    run = stored.runs[0]
    assert [begin_run(run.folder, {"api_key": "x"}) for _ in range(2)] == [1, 2]
    note_length(run.folder, 9)
    line: dict[str, Any] = {"split": "val", "name": "words", "metrics": {"pass@1": {"value": 0.5}}}
    again = {**line, "metrics": {"pass@1": {"value": 0.75}}}
    run.files.scores.write_text("".join(json.dumps({**one, "step": 4}) + "\n" for one in (line, again)), "utf-8")
    run.files.logs.folder.mkdir()
    steps = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}, {"step": 2, "loss": 1.0}, {"step": 2, "val/x": 1.0}]
    run.files.logs.metrics.write_text("".join(json.dumps(step) + "\n" for step in steps), "utf-8")
    assert (len(run.starts), run.total_steps) == (2, 9)
    assert [(metric, step, stored["value"]) for metric, step, _, stored in run.scores] == [
        ("val/words/pass@1", 4.0, 0.75)
    ]
    assert run.logged["loss"] == [(1.0, 2.0), (2.0, 1.0)]
    assert run.last_metrics == {"step": 2, "loss": 1.0}
    assert "[redacted]" in run.files.config.read_text("utf-8")


def test_the_result_on_disk_is_reported_where_it_is_requested(tmp_path: Path) -> None:
    end = (Kind.ARM_ENDED, {"arm": "a", "status": "cancelled", "metrics": {"steps": 3.0}})
    stored = record(tmp_path, STARTED, end)
    result = {"status": "completed", "metrics": {"steps": 9.0}, "artifacts": {"final": "w"}, "error": None}
    write_result(stored.runs[0].folder, result, hparams={})
    assert (stored.runs[0].status, stored.runs[0].metrics) == ("cancelled", {"steps": 3.0})
    on_disk = stored.runs_on_disk[0]
    assert (on_disk.status, on_disk.metrics, on_disk.artifacts) == ("completed", {"steps": 9.0}, {"final": "w"})


def test_notes_marks_and_decisions_are_reported_in_order(tmp_path: Path) -> None:
    stored = record(
        tmp_path,
        STARTED,
        (Kind.SEARCH_DECISION, {"rung": 1, "kept": ["a"]}),
        (Kind.BUDGET_STOP, {"reason": "budget: tokens"}),
        ended("budget"),
        (Kind.NOTE, {"text": "odd", "author": "me"}),
        (Kind.INVALIDATED, {"reason": "leak"}),
    )
    assert [(note.text, note.author) for note in stored.notes] == [("odd", "me")]
    assert (stored.invalidated, stored.budget_stop) == ("leak", "budget: tokens")
    assert stored.search_decisions == [{"rung": 1, "kept": ["a"]}]
    assert [event.kind for event in stored.decisions] == [Kind.SEARCH_DECISION, Kind.BUDGET_STOP]
    again = record(tmp_path, (Kind.REINSTATED, {}), RESUMED)
    assert (again.invalidated, again.budget_stop) == ("", "")


def test_a_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the record of an experiment"):
        ExperimentRecord.open(tmp_path)
