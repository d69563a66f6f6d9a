"""`evsys benchmark run` scores any client, resumes, and its exit code tells failures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import register_inference
from evsys_sdk.cli.main import main


class Parrot:
    """Answers with the last word of the question."""

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
def project(tmp_path: Path) -> Path:
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
    reply = answer(capsys, ref, "--breakdown", "size")
    assert reply["metrics"]["pass@1"]["value"] == pytest.approx(2 / 3)
    assert reply["breakdown"]["size"]["s"]["pass@1"]["value"] == 1.0
    assert json.loads(Path(reply["output"], "result.json").read_text(encoding="utf-8")) == reply


def test_what_failed_is_repeated_by_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    Parrot.broken = {"b"}
    reply = answer(capsys, "letters", "-o", "out", exit_code=2)
    assert "away" in reply["unscored"]["b"]
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


AGENT = """
from pydantic import BaseModel


class Polite:
    class Config(BaseModel, extra="forbid"):
        word: str = "a"
        times: int = 1

    def __init__(self, **params):
        self.cfg = self.Config(**params)

    async def run(self, task, policy, environment):
        messages = [{"role": "user", "content": " ".join([self.cfg.word] * self.cfg.times)}]
        turn = await policy.act(messages)
        return [*messages, turn.message]
"""


def test_an_agent_of_ones_own_gets_its_params(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "polite_agent.py").write_text(AGENT, encoding="utf-8")
    sys.path.insert(0, str(project))
    agent = ["--agent", "polite_agent:Polite", "--agent-param", "word=b", "--agent-param", "times=2"]
    reply = answer(capsys, "letters", *agent)
    assert Parrot.asked == ["b", "b", "b"]
    assert reply["metrics"]["pass@1"]["value"] == pytest.approx(1 / 3)
    assert reply["settings"]["harness"]["agent"]["params"] == {"word": "b", "times": 2}
    assert main(["benchmark", "run", "letters", "--inference", "parrot", *agent[:-1], "times=x"]) == 1
    assert "agent.params.times" in capsys.readouterr().err


def test_the_record_says_what_was_scored_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    reply = answer(capsys, "letters", "--output-dir", "somewhere")
    written = json.loads(Path("somewhere/result.json").read_text(encoding="utf-8"))
    assert written == reply
    assert (written["record"], written["kind"], written["model"]) == (1, "benchmark run", "parrot")
    assert Path("somewhere/predictions.jsonl").exists()


def test_what_can_be_run_can_be_added(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = project / "suite" / "one"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text("[metadata]\n", encoding="utf-8")
    (folder / "instruction.md").write_text("Do it.\n", encoding="utf-8")
    (folder / "tests" / "test.sh").write_text("exit 0\n", encoding="utf-8")
    for number, path in enumerate(
        ("suite", "suite/one", "data/benchmark/letters", "data/benchmark/letters/tasks.jsonl")
    ):
        assert main(["benchmark", "add", path, "--name", f"b{number}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"] == (1 if path.startswith("suite") else 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["leters", "--inference", "parrot"], "leters"),
        (["letters", "--inference", "parot"], "did you mean 'parrot'"),
        (["letters", "--inference", "parrot", "--params", "{model"], "not JSON"),
        (["letters", "--inference", "parrot", "--params", "[]"], "must be a JSON object"),
        (["letters", "--inference", "parrot", "--metrics", "pas@1"], "not registered"),
        (["letters", "--inference", "parrot", "--engine", "warp"], "no rollout engine 'warp'"),
        (["letters", "--inference", "parrot", "--metrics", "pass@3"], "pass@3 needs at least 3 attempts"),
        (["letters", "--inference", "parrot", "--params", '{"colour": 1}'], "params.colour: unknown key 'colour'"),
        (
            ["letters", "--inference", "parrot", "--agent", "bash", "--agent-param", "max_turns=0"],
            "agent.params.max_turns",
        ),
        (["letters", "--inference", "parrot", "--agent", "bash", "--agent-param", "turns"], "takes KEY=VALUE"),
        (["letters", "--inference", "parrot", "--agent-param", "turns=1"], "the params have no agent"),
        (["letters", "--inference", "parrot", "--agent", "nowhere.to:Find"], "cannot import the agent"),
    ],
)
def test_bad_input_is_a_sentence_and_nothing_is_asked(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", "run", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert Parrot.asked == []
