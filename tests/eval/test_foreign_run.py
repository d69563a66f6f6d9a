"""Logs of another evaluation program, read as predictions."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.eval.foreign_run import read_inspect_log


def sample(name: str, value: Any, epoch: int = 1, **more: Any) -> dict[str, Any]:
    scores = {} if value is None else {"match": {"value": value, "answer": "4"}}
    usage = {"m": {"total_tokens": 7}}
    asked = {"id": name, "epoch": epoch, "input": f"{name}?", "target": "4"}
    return {**asked, "scores": scores, "model_usage": usage, "total_time": 0.5, **more}


def write_log(path: Path, samples: list[dict[str, Any]], *, task: str = "sums", model: str = "toy/a") -> Path:
    header = {"version": 2, "status": "success", "eval": {"task": task, "model": model}}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps(header))
        archive.writestr("summaries.json", json.dumps(samples))
    return path


@pytest.mark.parametrize(
    ("value", "reward"),
    [("C", 1.0), ("I", 0.0), ("P", 0.5), ("N", 0.0), (0.25, 0.25), (True, 1.0), ("0.75", 0.75), ("yes", 1.0)],
)
def test_scores_are_read_as_inspect_reads_them(tmp_path: Path, value: Any, reward: float) -> None:
    [prediction] = read_inspect_log(write_log(tmp_path / "a.eval", [sample("s1", value)])).predictions
    assert (prediction.reward, prediction.tokens, prediction.text) == (reward, 7, "4")


def test_epochs_are_samples_and_failed_samples_are_no_zeros(tmp_path: Path) -> None:
    samples = [sample("s1", "C"), sample("s1", "I", epoch=2), sample("s2", "C"), sample("s3", None, error="no server")]
    run = read_inspect_log(write_log(tmp_path / "a.eval", samples))
    assert [(one.task_id, one.sample, one.reward) for one in run.predictions] == [
        ("s1", 0, 1.0),
        ("s1", 1, 0.0),
        ("s2", 0, 1.0),
        ("s3", 0, None),
    ]
    assert run.predictions[3].error == "no server"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "maybe", [1.0]])
def test_a_sample_whose_score_is_no_number_is_unscored_and_the_others_count(tmp_path: Path, value: Any) -> None:
    run = read_inspect_log(write_log(tmp_path / "a.eval", [sample("s1", "C"), sample("s2", value)]))
    assert [one.reward for one in run.predictions] == [1.0, None]
    assert "is not a number" in (run.predictions[1].error or "")


def test_a_log_in_which_every_sample_failed_tells_why(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.eval", [sample("s1", None, error={"message": "no images"})])
    [prediction] = read_inspect_log(log, scorer="match").predictions
    assert (prediction.reward, prediction.error) == (None, "no images")


def test_one_of_several_scores_is_named(tmp_path: Path) -> None:
    both = {"match": {"value": "C"}, "parts": {"value": {"style": 0.5, "truth": 1}}}
    log = write_log(tmp_path / "a.eval", [sample("s1", "C", scores=both)])
    assert [one.reward for one in read_inspect_log(log, scorer="parts/style").predictions] == [0.5]
    for scorer, message in {
        None: "scores of match, parts",
        "parts": "Name one as 'parts/style'",
        "f1": "match",
    }.items():
        with pytest.raises(DataError, match=message):
            read_inspect_log(log, scorer=scorer)


@pytest.mark.parametrize(
    ("samples", "message"),
    [([sample("s1", "maybe")], "is not a number"), ([sample("s1", None)], "none of its samples has a score")],
)
def test_a_log_without_numbers_is_refused(tmp_path: Path, samples: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_inspect_log(write_log(tmp_path / "a.eval", samples))


@pytest.mark.parametrize("content", ["no archive", ""])
def test_what_is_no_log_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.eval").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=str(tmp_path)):
        read_inspect_log(tmp_path / "a.eval")


@pytest.mark.parametrize(
    "summaries", [[1], {"a": 1}, [{"scores": {"m": {}}}], [{"id": 1, "scores": {"m": {"value": 1}}}]]
)
def test_a_log_of_another_form_is_refused(tmp_path: Path, summaries: Any) -> None:
    with zipfile.ZipFile(tmp_path / "a.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"status": "success", "eval": {}}))
        archive.writestr("summaries.json", json.dumps(summaries))
    with pytest.raises(DataError, match=str(tmp_path)):
        read_inspect_log(tmp_path / "a.eval")
