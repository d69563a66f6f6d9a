"""`evsys history`, `show`, `compare`, `context`, `note` and `invalidate`, as they are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

from ..history.recorded import BEGAN, write_experiment

COMMANDS = [
    ["history"],
    ["show", "rates"],
    ["compare", "rates", "longer"],
    ["context"],
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "outputs"
    write_experiment(root, "rates", verdict="refuted")
    write_experiment(root, "longer", started=BEGAN + 10, parent_experiment_id="rates-0a1b2c3d")
    return root


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_answers_as_text_and_json(
    root: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert "rates" in text(capsys, *command)
    assert "rates" in json.dumps(answer(capsys, *command))


def test_two_forms_of_a_digest_at_once_are_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "--json", "--markdown"]) == 1
    assert "Give one of them" in capsys.readouterr().err


def test_history_lists_filters_and_counts(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reply = answer(capsys, "history")
    assert (reply["total"], reply["trials"]) == (2, {"tested": 2, "supported": 0, "expected_false": 0.03})
    assert [experiment["name"] for experiment in reply["experiments"]] == ["longer", "rates"]
    assert [experiment["name"] for experiment in answer(capsys, "history", "--verdict", "refuted")["experiments"]] == [
        "rates"
    ]
    limited = answer(capsys, "history", "--limit", "1")
    assert (limited["total"], len(limited["experiments"])) == (2, 1)
    assert "1 of 2 experiments" in text(capsys, "history", "--limit", "1")
    assert answer(capsys, "history", "--search", "nothing like it") == {"total": 0, "trials": {}, "experiments": []}


def test_an_empty_history_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No experiments found (there is no ./outputs" in text(capsys, "history")
    assert "No experiments found" in text(capsys, "context")
    (tmp_path / "outputs").mkdir()
    assert "looked in outputs" in text(capsys, "history")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["history", "--status", "runing"], "Did you mean 'running'?"),
        (["history", "--verdict", "suported"], "Did you mean 'supported'?"),
        (["history", "--since", "soon"], "this is not a date"),
        (["history", "--limit", "0"], "--limit"),
        (["history", "--root", "nowhere"], "there is no such folder"),
        (["show", "ratez"], "Did you mean 'rates'?"),
        (["compare", "rates"], "Give 2 to 26 runs"),
        (["compare", "rates", "rates-0a1b2c3d"], "Two of these are the same run"),
        (["note", "rates", " "], "The note is empty"),
        (["invalidate", "rates"], "Give it with --reason"),
        (["invalidate", "rates", "--undo"], "is not invalidated"),
        (["context", "--budget-tokens", "10"], "--budget-tokens"),
        (["show", "rates", "--plot", "x.gif"], "must end in .png or .svg"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_1(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


def test_notes_and_invalidations_are_seen_at_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(answer(capsys, "note", "rates", "Check the data.", "--author", "agent")["event_id"]) == 12
    assert "agent: Check the data." in text(capsys, "show", "rates")
    assert [
        experiment["name"] for experiment in answer(capsys, "history", "--search", "check data")["experiments"]
    ] == ["rates"]
    assert answer(capsys, "invalidate", "longer", "--reason", "leak")["event"] == "invalidated"
    assert [one["id"] for one in answer(capsys, "context")["questions"][0]["best"]] == ["rates-0a1b2c3d"]
    assert "INVALIDATED" in text(capsys, "history")
    assert "INVALIDATED: leak" in text(capsys, "show", "longer")
    assert answer(capsys, "invalidate", "longer", "--undo")["event"] == "reinstated"
    assert answer(capsys, "history", "--limit", "1")["experiments"][0]["invalidated"] == ""


def test_show_takes_a_path_outside_every_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_experiment(tmp_path / "far", "away")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert answer(capsys, "show", str(path))["name"] == "away"


def test_a_terminal_that_knows_only_ascii_gets_only_ascii(root: Path) -> None:
    write_experiment(root, "umlaut", metadata={"hypothesis": "Größer ist besser → immer."})
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "140"}
    code = "import sys; from evsys_sdk.cli.main import main; sys.exit(main())"
    for command in (["history"], ["compare", "rates", "umlaut"], ["show", "umlaut"], ["context"]):
        done = subprocess.run([sys.executable, "-c", code, *command], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_json_is_json_whatever_is_recorded_and_whatever_the_terminal_knows(root: Path, encoding: str) -> None:
    write_experiment(root, "odd", metadata={"hypothesis": "Größer \ud800 → \x1b", "free": 1e308 * 10})
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    code = "import sys; from evsys_sdk.cli.main import main; sys.exit(main())"
    for command in (["history"], ["compare", "rates", "odd"], ["show", "odd"], ["context"]):
        arguments = [sys.executable, "-c", code, *command, "--json"]
        done = subprocess.run(arguments, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Größer \ud800 →" in json.dumps(json.loads(done.stdout), ensure_ascii=False)
        assert b"Infinity" not in done.stdout.replace(b'"Infinity"', b"")


def test_what_a_record_says_cannot_command_the_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(root, "evil", metadata={"hypothesis": "red \x1b[31m alert \x07 \x9b2J"})
    for command in (["history"], ["show", "evil"], ["context"], ["compare", "rates", "evil"]):
        shown = text(capsys, *command)
        assert not {"\x1b", "\x07", "\x9b"} & set(shown)
