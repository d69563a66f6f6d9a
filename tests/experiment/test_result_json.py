"""What `run_result.json` holds: notes among the extras, as in every record so far, and typed again when it is read."""

from __future__ import annotations

import json
import math
from dataclasses import fields

from evsys_sdk import RunNotes, RunResult
from evsys_sdk.experiment.arms.results import portable, result_from_dict, result_to_dict

NOTES = RunNotes(
    unscored="no benchmark",
    stop_reason="Ctrl-C",
    untrained_stages=["b"],
    retryable=True,
    traceback="Traceback ...",
    spend={"usd": 1.5},
    tokens={"trained": 3, "sampled": 4},
    renderer="chatml",
    trainer="SFTTrainer",
    selection_metric="reward/mean",
    selection_mode="max",
    selection="one set",
    scoring_problems=["late"],
    findings=["all rewards are 0"],
    trained_on={"test/tools": {"n": 1, "first": ["t-1"]}},
    system_prompt="Be brief.",
    retention={"a": {"a": {"exact_match": 1.0}}},
)


def test_every_note_is_a_key_of_the_extras_and_comes_back_as_a_note() -> None:
    result = RunResult("r", "completed", {"x": 1.0}, {"final_checkpoint": "c"}, extras={"mine": 1}, notes=NOTES)
    written = json.loads(json.dumps(result_to_dict(result)))
    assert set(written) == {"run_id", "status", "metrics", "artifacts", "error", "extras"}
    assert set(written["extras"]) == {"mine", *(field.name for field in fields(RunNotes))}
    assert result_from_dict(written) == result


def test_nothing_noted_is_nothing_written() -> None:
    assert result_to_dict(RunResult("r", "completed"))["extras"] == {}
    assert result_to_dict(RunResult("r", "completed", notes=RunNotes(retention={})))["extras"] == {"retention": {}}


def test_a_record_of_an_older_version_is_read() -> None:
    old = {
        "run_id": "r",
        "status": "cancelled",
        "metrics": {"final_loss": None},
        "artifacts": {},
        "error": "interrupted",
        "extras": {"stop_reason": "interrupted", "selection_metric": "loss", "theirs": [1]},
        "hparams": {},
        "ts": 0.0,
    }
    result = result_from_dict(old)
    assert (result.notes.stop_reason, result.notes.selection_metric, result.extras) == (
        "interrupted",
        "loss",
        {"theirs": [1]},
    )
    assert math.isnan(result.metrics["final_loss"])


def test_a_result_that_travels_keeps_its_notes() -> None:
    sent = portable(RunResult("r", "failed", {"x": math.inf}, extras={"made_by": object}, notes=NOTES))
    assert (sent.notes, sent.metrics) == (NOTES, {"x": math.inf})
    assert "class" in sent.extras["made_by"]


def test_an_extra_that_only_shares_a_name_with_a_note_stays_an_extra() -> None:
    sent = portable(RunResult("r", "completed", extras={"stop_reason": 5, "tokens": "many", "unscored": "no time"}))
    assert (sent.notes, sent.extras) == (RunNotes(unscored="no time"), {"stop_reason": 5, "tokens": "many"})
