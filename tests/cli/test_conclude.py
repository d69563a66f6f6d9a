"""`evsys conclude`: the conclusion again, whether it agrees with the stored one, and an exit code that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

from ..experiment.conclusion_records import line, write_experiment


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    arms = {
        f"{run}__seed{seed}": [line("val", [base + (7 * task + seed) % 5 / 100 for task in range(20)])]
        for run, base in (("baseline", 0.3), ("a", 0.5))
        for seed in range(3)
    }
    return write_experiment(tmp_path / "outputs" / "e", arms)


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_the_first_time_it_is_written(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conclude", "outputs/e"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# e-00000000: supported\n")
    assert shown.endswith("outputs/e\nconclusion: conclusion written\n")
    assert json.loads((experiment / "conclusion.json").read_text("utf-8"))["verdict"] == "supported"
    assert shown.startswith((experiment / "conclusion.md").read_text("utf-8").rstrip())


def test_the_second_time_it_agrees(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["conclude", "outputs/e"])
    capsys.readouterr()
    assert main(["conclude", "outputs/e", "--json"]) == 0
    reply = answer(capsys)
    assert (reply["agrees"], reply["written"], reply["changed"]) == (True, False, [])
    assert reply["conclusion"]["best_arm"] == "a"
    assert main(["conclude", "outputs/e", "--check"]) == 0


def test_a_stored_conclusion_that_does_not_follow_is_reported_and_kept(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["conclude", "outputs/e"])
    file = experiment / "conclusion.json"
    polished = file.read_text("utf-8").replace('"best_score": 0.5', '"best_score": 0.9')
    file.write_text(polished, encoding="utf-8")
    capsys.readouterr()
    assert main(["conclude", "outputs/e", "--check", "--json"]) == 2
    assert answer(capsys)["changed"] == ["best_score"]
    assert file.read_text("utf-8") == polished
    assert main(["conclude", "outputs/e"]) == 0
    assert "conclusion rewritten; it differed in: best_score" in capsys.readouterr().out
    assert file.read_text("utf-8") != polished


def test_check_without_a_stored_conclusion_writes_none(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conclude", "outputs/e", "--check"]) == 2
    assert "no conclusion is stored" in capsys.readouterr().out
    assert not (experiment / "conclusion.json").exists()


def test_a_damaged_one_is_written_anew(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (experiment / "conclusion.json").write_bytes(b"\xff{")
    assert main(["conclude", "outputs/e", "--check"]) == 2
    assert main(["conclude", "outputs/e"]) == 0
    assert "the file is damaged" in capsys.readouterr().out
    assert main(["conclude", "outputs/e", "--check"]) == 0


def test_a_name_and_an_id_find_it(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for reference in ("e", "e-00000000"):
        assert main(["conclude", reference, "--json"]) == 0
        assert answer(capsys)["conclusion"]["experiment"] == "e-00000000"


def test_what_is_not_there_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conclude", "no-such-thing"]) == 1
    assert "no-such-thing" in capsys.readouterr().err
