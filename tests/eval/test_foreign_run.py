"""Logs of another evaluation program, read as scores by task and compared in pairs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.errors import DataError
from evsys_sdk.eval.foreign_run import read_inspect_log
from evsys_sdk.history.foreign_runs import compare_foreign_runs


def sample(name: str, value: Any, epoch: int = 1, **more: Any) -> dict[str, Any]:
    scores = {} if value is None else {"match": {"value": value, "answer": "4"}}
    usage = {"m": {"total_tokens": 7}}
    fields = {"id": name, "epoch": epoch, "input": f"{name}?", "target": "4"}
    return {**fields, "scores": scores, "model_usage": usage, "total_time": 0.5, **more}


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


def test_epochs_are_averaged_and_failed_samples_are_no_zeros(tmp_path: Path) -> None:
    samples = [sample("s1", "C"), sample("s1", "I", epoch=2), sample("s2", "C"), sample("s3", None, error="no server")]
    run = read_inspect_log(write_log(tmp_path / "a.eval", samples))
    assert run.by_task == {"s1": 0.5, "s2": 1.0}
    result = run.to_result()
    assert result.unscored == {"s3": "no server"}
    assert result.metrics["mean_reward"].value == pytest.approx(0.75)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "maybe", [1.0]])
def test_a_sample_whose_score_is_no_number_is_unscored_and_the_others_count(tmp_path: Path, value: Any) -> None:
    run = read_inspect_log(write_log(tmp_path / "a.eval", [sample("s1", "C"), sample("s2", value)]))
    assert run.by_task == {"s1": 1.0}
    assert "is not a number" in run.to_result().unscored["s2"]


def test_a_log_in_which_every_sample_failed_tells_why(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.eval", [sample("s1", None, error={"message": "no images"})])
    assert read_inspect_log(log, scorer="match").to_result().unscored == {"s1": "no images"}


def test_one_of_several_scores_is_named(tmp_path: Path) -> None:
    both = {"match": {"value": "C"}, "parts": {"value": {"style": 0.5, "truth": 1}}}
    log = write_log(tmp_path / "a.eval", [sample("s1", "C", scores=both)])
    assert read_inspect_log(log, scorer="parts/style").by_task == {"s1": 0.5}
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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.eval", "no archive"),
        ("a.eval", ""),
        *(("a.json", text) for text in ("", "[]", "null", "{}", '{"samples": [1]}', '{"samples": {"a": 1}}', "nan")),
        ("a.json", '{"status": "success", "eval": {"task": "t"}, "samples": [{"scores": {"m": {}}}]}'),
        ("a.json", '{"status": "success", "eval": {}, "samples": [{"id": 1, "scores": {"m": {"value": 1}}}]}'),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=str(tmp_path)):
        read_inspect_log(tmp_path / name)


def test_ten_thousand_samples_are_compared_in_pairs(tmp_path: Path) -> None:
    weak = [sample(f"s{n}", "C" if n % 10 < 4 else "I") for n in range(10_000)]
    strong = [sample(f"s{n}", "C" if n % 10 < 5 else "I") for n in range(10_000)]
    first = read_inspect_log(write_log(tmp_path / "a.eval", weak))
    pair = compare_foreign_runs(first, read_inspect_log(write_log(tmp_path / "b.eval", strong)))
    assert pair.n_tasks == 10_000
    assert pair.difference == pytest.approx(0.1)
    assert pair.stderr == pytest.approx((0.1 * 0.9 / 9_999) ** 0.5)
    with pytest.raises(DataError, match="Compare runs of one task"):
        compare_foreign_runs(first, read_inspect_log(write_log(tmp_path / "c.eval", strong, task="other")))


def test_the_command_prints_the_score_and_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weak = write_log(tmp_path / "a.eval", [sample(f"s{n}", "CI"[n % 2]) for n in range(40)])
    strong = write_log(tmp_path / "b.eval", [sample(f"s{n}", "C") for n in range(40)], model="toy/b")
    assert main(["benchmark", "import", str(strong), "--against", str(weak)]) == 0
    out = capsys.readouterr().out
    assert "sums: toy/b: mean_reward 1" in out
    assert "difference: +0.5 [+0.338, +0.662], paired over 40 samples" in out
    assert main(["benchmark", "import", str(weak), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["by_task"]["s1"] == 0.0
    failed = write_log(tmp_path / "c.eval", [sample("s1", "C"), sample("s2", None, error="no server")])
    assert main(["benchmark", "import", str(failed)]) == 2
    assert "1 of 2 samples failed" in capsys.readouterr().out
