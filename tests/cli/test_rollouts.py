"""`evsys rollouts`: what a run learned from, found, read and compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

LINES: list[dict[str, Any]] = [
    {"step": 1, "task_id": "a", "group": 0, "sample": 0, "status": "ok", "reward": 0.0, "tokens": 3, "turns": 1},
    {"step": 1, "task_id": "a", "group": 0, "sample": 1, "status": "ok", "reward": 1.0, "tokens": 4, "turns": 1},
    {"step": 2, "task_id": "b", "group": 0, "sample": 0, "status": "infra", "reward": None, "tokens": 0, "turns": 0},
    {"step": 2, "task_id": "b", "group": 0, "sample": 1, "status": "ok", "reward": 0.5, "tokens": 9, "turns": 1},
]
ANSWERS = ["first\nwrong", "first\nright", "", "half"]


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """An experiment of two arms, one of which has rollouts."""
    folder = tmp_path / "outputs" / "words"
    for arm in ("rl", "sft"):
        (folder / arm).mkdir(parents=True)
        (folder / arm / "config.json").write_text("{}", encoding="utf-8")
        (folder / arm / "starts.jsonl").write_text('{"time": 1.0}\n', encoding="utf-8")
    config = {"name": "words", "runs": [{"name": "rl"}, {"name": "sft"}]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_rollouts(folder / "rl", LINES)
    return folder


def write_rollouts(arm: Path, lines: list[dict[str, Any]]) -> None:
    said = [
        {**line, "messages": [{"role": "user", "content": "say it"}, {"role": "assistant", "content": answer}]}
        for line, answer in zip(lines, ANSWERS, strict=True)
    ]
    said[2] |= {"error": "the verifier failed: boom", "error_at": "mine.py:3"}
    said[3] = {**lines[3], "dropped": "share"}
    (arm / "logs/training").mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in said)
    (arm / "logs/training/rollouts.jsonl").write_text(text, encoding="utf-8")
    timing = '{"step": 1, "seconds": [0.25, 0.5]}\n{"step": 2, "seconds": [1, 2]}\n'
    (arm / "logs/training/rollout_timing.jsonl").write_text(timing, encoding="utf-8")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["rollouts", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_begins_with_the_latest_step_and_says_how_it_went(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollouts", "words"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4 rollouts of steps 1 to 2, 1 of them failed; mean reward 0.5 at first, 0.5 at last.",
        "",
        "id     reward  tokens  answer",
        "-----  ------  ------  ------------------------------------------------",
        "2/b/0  none    0       failed: the verifier failed: boom",
        "2/b/1  0.5     9       (not kept: rollouts.share of the run is below 1)",
        "1/a/0  0       3       first wrong",
        "1/a/1  1       4       first right",
    ]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--step", "1"], ["1/a/0", "1/a/1"]),
        (["--task", "b"], ["2/b/0", "2/b/1"]),
        (["--failed"], ["2/b/0"]),
        (["--min-reward", "0.5"], ["2/b/1", "1/a/1"]),
        (["--max-reward", "0.5"], ["2/b/1", "1/a/0"]),
        (["--min-reward", "0.5", "--step", "1"], ["1/a/1"]),
        (["--limit", "1"], ["2/b/1"]),
        (["--task", "nobody"], []),
    ],
)
def test_filters(experiment: Path, options: list[str], found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, str(experiment), *options)
    assert [rollout["id"] for rollout in answer["rollouts"]] == found
    assert (answer["recorded"], answer["failed"]) == (4, 1)


def test_one_is_shown_whole(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", "words", "--show", "2/b/0"]) == 0
    out = capsys.readouterr().out
    assert "2/b/0  (rl, group 0): reward none, infra, 0 tokens, 1 s" in out
    assert "the verifier failed: boom (at mine.py:3)" in out
    assert "--- user\nsay it" in out
    assert main(["rollouts", "words", "--show", "2/b/1"]) == 0
    assert "not kept: rollouts.share" in capsys.readouterr().out


def test_two_are_compared(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", "words", "--diff", "1/a/0", "1/a/1"]) == 0
    out = capsys.readouterr().out
    assert "- 1/a/0: reward 0\n+ 1/a/1: reward 1" in out
    assert "-wrong\n+right" in out
    assert "-first" not in out
    answer = ask(capsys, "words", "--diff", "1/a/0", "1/a/1")
    assert [rollout["id"] for rollout in answer["rollouts"]] == ["1/a/0", "1/a/1"]
    assert "-wrong" in answer["diff"]


def test_the_folder_of_an_arm_names_it(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollouts(experiment / "sft", LINES)
    assert {rollout["arm"] for rollout in ask(capsys, "words")["rollouts"]} == {"rl", "sft"}
    assert {rollout["arm"] for rollout in ask(capsys, str(experiment / "sft"))["rollouts"]} == {"sft"}
    assert {rollout["arm"] for rollout in ask(capsys, "words", "--arm", "sft")["rollouts"]} == {"sft"}
    assert main(["rollouts", "words", "--show", "1/a/0"]) == 1
    assert "several arms have rollouts (rl, sft). Name one with --arm." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["words", "--show", "1/a/2"], "there is no rollout '1/a/2'. Did you mean '1/a/"),
        (["words", "--arm", "rll"], "there is no arm 'rll'. Did you mean 'rl'?"),
        (["words", "--arm", "sft"], "no rollouts are recorded"),
    ],
)
def test_what_is_not_there_is_a_sentence(
    experiment: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollouts", *arguments]) == 1
    assert message in capsys.readouterr().err
