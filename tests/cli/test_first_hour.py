"""The first hour: from an empty folder with a messy table to a comparison of two learning rates, in eight commands.

The output is checked against the table and the record.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.config.yaml_write import write_yaml

pytestmark = pytest.mark.slow

TEAMS = {
    "billing": ["invoice", "refund", "payment", "receipt"],
    "logins": ["password", "account", "username", "captcha"],
    "parcels": ["delivery", "courier", "package", "letter"],
}
PHRASES = [
    *("my {} is wrong", "question about the {}", "the {} fails", "help with a {} please", "{} missing since today"),
    *("who has the {}", "{} came twice", "change my {} now", "no {} again", "where is that {}", "old {} needed"),
]
SPELLINGS = {3: str.title, 7: lambda team: f" {team} ", 11: lambda team: "", 13: lambda team: "N/A"}
RUNS = ["sft__learning_rate0p0002", "sft__learning_rate0p01"]
CLAIM = "The higher rate routes more tickets right."


def write_table(path: Path) -> dict[str, int]:
    """Tickets with three spellings of each team, nulls, duplicates, broken rows and a byte-order mark; their counts."""
    rows: list[tuple[str, str]] = []
    repeats = 0
    tickets = [(phrase.format(word), team) for phrase in PHRASES for team, words in TEAMS.items() for word in words]
    for number, (text, team) in enumerate(tickets):
        spell: Callable[[str], str] = SPELLINGS.get(number % 16, str)
        rows.append((text, spell(team)))
        if number % 10 == 0:
            rows.append(rows[-1])
            repeats += 1
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        out = csv.writer(file, delimiter=";")
        out.writerows([("Ticket text", "team"), *rows, ("no quotes", " here", "billing"), ("cut off",)])
    empty = sum(not team for _, team in rows)
    return {"rows": len(rows), "empty": empty, "repeats": repeats, "null_words": sum(t == "N/A" for _, t in rows)}


def config_of(data: dict[str, Any]) -> dict[str, Any]:
    """The pasted block as a config: one part of the rows to learn from, the other to be scored on."""
    *clean, to_chat = data["transforms"]

    def part(name: str) -> dict[str, Any]:
        shares = {"train": 0.6, "val": 0.0, "test": 0.4}
        return {"kind": "split", "params": {"part": name, **shares, "key": "ticket_text"}}

    tasks = [*clean, part("test"), to_chat, {"kind": "chat_to_harbor_task", "params": {"fn_name": "exact_match"}}]
    return {
        "name": "rates",
        "metadata": {
            "hypothesis": {"claim": CLAIM, "baseline": RUNS[0], "min_effect": 0.1},
            "success_metric": "pass@1",
            "benchmark": {**data, "name": "held_out", "transforms": tasks, "max_tokens": 12},
        },
        "n_repeats": 3,
        "matrix": {
            "axes": {"algorithm.params.learning_rate": [0.0002, 0.01]},
            "base_run": {
                "name": "sft",
                "data": {**data, "transforms": [*clean, part("train"), to_chat]},
                "model": {"name": "tiny"},
                "algorithm": {"kind": "sft", "params": {"max_steps": 25, "batch_size": 8}},
                "backend": {"kind": "mock"},
            },
        },
    }


@dataclass
class CommandLine:
    """Runs `evsys` commands that must succeed, and counts them."""

    capsys: pytest.CaptureFixture[str]
    commands: int = 0

    def __call__(self, *arguments: str) -> str:
        assert main([*arguments]) == 0, self.capsys.readouterr().err
        self.commands += 1
        output = self.capsys.readouterr()
        assert output.out.strip()
        assert "Traceback" not in output.err
        return output.out


@pytest.fixture
def evsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return CommandLine(capsys)


def test_from_a_messy_table_to_a_comparison(evsys: CommandLine, tmp_path: Path) -> None:
    known = write_table(tmp_path / "tickets.csv")
    profile = evsys("dataset", "show", "tickets.csv")
    assert f"tickets.csv: {known['rows']} rows, 2 columns" in profile
    problems = " ".join(profile.split())
    assert f"row {known['rows'] + 1} (line {known['rows'] + 2}): 3 cells, but the header names 2 columns" in problems
    assert f"row {known['rows'] + 2} (line {known['rows'] + 3}): 1 cell, but the header names 2 columns" in problems
    assert f"- {known['empty']} of {known['rows']} rows have no `team`: rows " in profile
    assert f'probably mean null: "N/A" {known["null_words"]}x.' in profile
    assert f"- {known['repeats']} of {known['rows']} rows repeat an earlier one: rows " in profile
    assert '- `team` "billing" is also written "Billing" ' in profile
    data = read_yaml(profile.partition("Data block to paste into a run\n")[2]).data["data"]
    (tmp_path / "rates.yaml").write_text(write_yaml(config_of(data)), encoding="utf-8")

    assert f"OK. Experiment 'rates' has 2 runs: {', '.join(RUNS)}" in evsys("validate", "rates.yaml", "--deep")
    plan = evsys("plan", "rates.yaml")
    assert "rates: 6 arms, tiny on mock" in plan
    assert re.search(r"^all arms +6 +150 ", plan, re.MULTILINE)  # six arms of 25 steps

    conclusion = evsys("run", "rates.yaml", "--quiet")
    folders = {run: sorted((tmp_path / "outputs" / "rates").glob(f"{run}__seed*")) for run in RUNS}
    assert [len(arms) for arms in folders.values()] == [3, 3]
    scores = {run: [_score(folder) for folder in arms] for run, arms in folders.items()}
    effect = mean(scores[RUNS[1]]) - mean(scores[RUNS[0]])
    interval = re.search(rf"`{RUNS[1]}` scores (\S+) \[(\S+), (\S+)\]", conclusion)
    assert interval
    assert interval[1] == f"{effect:+.3f}"
    assert 0.1 < float(interval[2]) < effect < float(interval[3])
    assert "Supported: " in conclusion
    assert "Measured on the mock backend" in conclusion

    page = evsys("show", "rates")
    for run in RUNS:
        [row] = [line for line in page.splitlines() if re.match(rf"\*? ?{run} +3 ", line)]
        assert float(row.removeprefix("* ").split()[2]) == pytest.approx(mean(scores[run]), abs=5e-4)
    errors = evsys("errors", "rates")
    head = re.search(r"(\S+)__seed(\d+) after step 25: (\d+) of (\d+) answers wrong", errors)
    assert head
    score = _score(tmp_path / "outputs" / "rates" / f"{head[1]}__seed{head[2]}")
    assert 1 - int(head[3]) / int(head[4]) == pytest.approx(score)
    assert "rates: no issues found" in evsys("audit", "rates")
    context = evsys("context")
    assert CLAIM in context
    assert "on mock" in context
    assert evsys.commands == 8


def _score(folder: Path) -> float:
    metrics = json.loads((folder / "run_result.json").read_text("utf-8"))["metrics"]
    return metrics["test/held_out/pass@1"]
