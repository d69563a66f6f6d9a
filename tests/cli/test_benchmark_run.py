"""`evsys benchmark run` scores any client, goes on where it was, and says by its exit code whether all went well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import register_inference
from evsys_sdk.cli.main import main


class Parrot:
    """Says the last word of what it is asked."""

    name = "parrot"
    asked: list[str]
    broken: set[str]

    def __init__(self, model: str = "grey") -> None:
        self.model = model

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None) -> str:
        word = prompt.split()[-1]
        type(self).asked.append(word)
        if word in type(self).broken:
            raise ConnectionError("away")
        return word


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "benchmark" / "letters"
    folder.mkdir(parents=True)
    tasks = [
        {
            "task_id": word,
            "instruction": f"say {word}",
            "verifier": {"kind": "in_process", "fn_name": "exact_match", "expected": expected},
            "metadata": {"size": size},
        }
        for word, expected, size in (("a", "a", "s"), ("b", "b", "s"), ("c", "no", "l"))
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks), encoding="utf-8")
    Parrot.asked, Parrot.broken = [], set()
    register_inference("parrot")(Parrot)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, exit_code: int = 0) -> dict[str, Any]:
    assert main(["benchmark", "run", *arguments, "--inference", "parrot", "--json", "--quiet"]) == exit_code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("ref", ["letters", "data/benchmark/letters", "data/benchmark/letters/tasks.jsonl"])
def test_a_benchmark_is_found_by_name_and_by_path(ref: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, ref, "--breakdown", "size")
    assert found["metrics"]["pass@1"]["value"] == pytest.approx(2 / 3)
    assert found["breakdown"]["size"]["s"]["pass@1"]["value"] == 1.0
    assert json.loads(Path(found["output"], "result.json").read_text(encoding="utf-8")) == found


def test_what_failed_is_repeated_by_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    Parrot.broken = {"b"}
    found = answer(capsys, "letters", "-o", "out", exit_code=2)
    assert "away" in found["unscored"]["b"]
    Parrot.asked, Parrot.broken = [], set()
    assert answer(capsys, "letters", "-o", "out")["unscored"] == {}
    assert Parrot.asked == ["b"]
    Parrot.asked = []
    assert answer(capsys, "letters", "-o", "out")["n_tasks"] == 3
    assert Parrot.asked == []


def test_results_are_on_stdout_and_progress_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "run", "letters", "--inference", "parrot", "--params", '{"model": "red"}']) == 0
    shown = capsys.readouterr()
    assert "letters: 3/3" in shown.err
    assert "pass@1" in shown.out
    assert "model: parrot:red" in shown.out
    assert "letters: 3/3" not in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["leters", "--inference", "parrot"], "leters"),
        (["letters", "--inference", "parot"], "did you mean 'parrot'"),
        (["letters", "--inference", "parrot", "--params", "{model"], "not JSON"),
        (["letters", "--inference", "parrot", "--params", "[]"], "write an object"),
        (["letters", "--inference", "parrot", "--metrics", "pas@1"], "not registered"),
        (["letters", "--inference", "parrot", "--engine", "warp"], "no rollout engine 'warp'"),
    ],
)
def test_bad_input_is_a_sentence_and_nothing_is_asked(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", "run", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert Parrot.asked == []
