"""The first hour: from an empty folder with a messy table to a comparison of two learning rates, in eight commands.

What is printed is checked against the table and against the record.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
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
    """Tickets with three spellings of each team, nulls, duplicates and a byte-order mark; returns what is in them."""
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
        out.writerows([("Ticket text", "team"), *rows])
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
            "benchmark": {"name": "held_out", "path": data["path"], "transforms": tasks, "max_tokens": 12},
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


@pytest.fixture
def evsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> str:
        assert main([*arguments]) == 0, capsys.readouterr().err
        said = capsys.readouterr().out
        assert said.strip()
        return said

    return run


def test_from_a_messy_table_to_a_comparison(evsys: Callable[..., str], tmp_path: Path) -> None:
    known = write_table(tmp_path / "tickets.csv")
    shown = evsys("dataset", "show", "tickets.csv")  # 1
    assert f"tickets.csv: {known['rows']} rows, 2 columns" in shown
    assert f"- {known['empty']} of {known['rows']} rows have no `team`: rows " in shown
    assert f'probably mean null: "N/A" {known["null_words"]}x.' in shown
    assert f"- {known['repeats']} of {known['rows']} rows repeat an earlier one: rows " in shown
    assert '- `team` "billing" is also written "Billing" ' in shown
    data = read_yaml(shown.partition("Data block to paste into a run\n")[2]).data["data"]
    (tmp_path / "rates.yaml").write_text(write_yaml(config_of(data)), encoding="utf-8")

    assert f"OK. Experiment 'rates' has 2 runs: {', '.join(RUNS)}" in evsys("validate", "rates.yaml", "--deep")  # 2
    plan = evsys("plan", "rates.yaml")  # 3
    assert "rates: 6 arms, tiny on mock" in plan
    assert re.search(r"^all arms +6 +150 ", plan, re.MULTILINE)  # six arms of 25 steps

    said = evsys("run", "rates.yaml", "--quiet")  # 4
    folders = {run: sorted((tmp_path / "outputs" / "rates").glob(f"{run}__seed*")) for run in RUNS}
    assert [len(found) for found in folders.values()] == [3, 3]
    scores = {run: [_score(folder) for folder in found] for run, found in folders.items()}
    effect = mean(scores[RUNS[1]]) - mean(scores[RUNS[0]])
    assert f"`{RUNS[1]}` scores {effect:+.3f} [" in said
    interval = re.search(rf"`{RUNS[1]}` scores \S+ \[(\S+), (\S+)\]", said)
    assert interval
    assert 0.1 < float(interval[1]) < effect < float(interval[2])
    assert "Supported: " in said
    assert "Measured on the mock backend" in said

    seen = evsys("show", "rates")  # 5
    for run in RUNS:
        [row] = [line for line in seen.splitlines() if re.match(rf"\*? ?{run} +3 ", line)]
        assert float(row.removeprefix("* ").split()[2]) == pytest.approx(mean(scores[run]), abs=5e-4)
    wrong = evsys("errors", "rates")  # 6
    found = re.search(r"(\S+)__seed(\d+) after step 25: (\d+) of (\d+) answers wrong", wrong)
    assert found
    scored = _score(tmp_path / "outputs" / "rates" / f"{found[1]}__seed{found[2]}")
    assert 1 - int(found[3]) / int(found[4]) == pytest.approx(scored)
    assert "rates" in evsys("audit", "rates")  # 7
    context = evsys("context")  # 8
    assert CLAIM in context
    assert "mock" in context


def _score(folder: Path) -> float:
    metrics = json.loads((folder / "run_result.json").read_text("utf-8"))["metrics"]
    return metrics["test/held_out/pass@1"]
