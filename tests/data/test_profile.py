"""The profile of a file of rows: what is wrong with it, and the data block that trains on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.config import DataConfig
from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.data import prepare_rows
from evsys_sdk.data.profile import profile_rows, suggest_transforms
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.errors import WorkspaceError

MESSY = """\ufeffTicket text;team
my invoice is wrong;billing
the password does not work;logins
my refund is wrong; Billing
MY REFUND is wrong;billing
a question about the payment;billing
please help with a username;logins
please help with an account;N/A
the account does not work;
the username does not work;logins
my payment is wrong;billing
my payment is wrong;logins
"""


def chat(asked: str, answered: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]}


def profile(*rows: dict[str, Any]) -> Any:
    return profile_rows(enumerate(rows, 1), source="rows.jsonl", count_tokens=len)


@pytest.fixture
def messy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tickets.csv").write_text(MESSY, encoding="utf-8")
    return tmp_path


def test_a_messy_table_is_described_and_its_data_block_reads_it(
    messy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset", "show", "tickets.csv"]) == 0
    out = capsys.readouterr().out
    for line in (
        "tickets.csv: 11 rows, 2 columns",
        "team         10      4         billing 5, logins 4",
        '- `team` "billing" is also written " Billing" 1x.',
        '- `team` holds texts that probably mean null: "N/A" 1x.',
        "- 1 of 11 rows have no `team`: row 8.",
        "- 1 of 11 rows repeat an earlier one: row 4.",
        "- 1 of 8 different `Ticket text` values have several answers: decide which.",
        "prompt  18        19      28    28",
        "shortest (row 4): 'MY REFUND is wrong' -> 'billing'",
    ):
        assert line in out
    block = read_yaml(out.partition("Data block to paste into a run\n")[2]).data["data"]
    rows = list(prepare_rows(DataConfig.model_validate(block), store=LocalDataStore(root=str(messy))))
    assert [row["messages"][1]["content"] for row in rows].count("billing") == 4
    assert [row["messages"][0]["content"] for row in rows][:2] == ["my invoice is wrong", "the password does not work"]
    assert len(rows) == 8


def test_the_profile_as_json_has_the_same_figures(messy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "show", "tickets.csv", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert parsed["rows"] == 11
    assert parsed["columns"][1]["labels"] == {"billing": 5, "logins": 4}
    assert parsed["lengths"]["answer"] == {"shortest": 6, "median": 7, "percentile_95": 8, "longest": 8}
    assert [transform["kind"] for transform in parsed["suggestion"]["transforms"]] == [
        *("rename_fields", "map_values", "filter", "dedupe", "jsonl_to_chat")
    ]


def test_lines_that_cannot_be_read_are_a_problem_and_not_the_end(
    messy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (messy / "rows.jsonl").write_text('{"query": "a", "answer": "b"}\nnonsense\n', encoding="utf-8")
    assert main(["dataset", "show", "rows.jsonl"]) == 0
    assert "- rows.jsonl:2: this is not JSON" in capsys.readouterr().out
    (messy / "rows.jsonl").write_text('{"query": "a", "answer": "b"}\nnonsense\nnonsense\n', encoding="utf-8")
    assert main(["dataset", "show", "rows.jsonl"]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "- rows.jsonl: 2 of 3 rows cannot be read: this is not JSON" in report
    assert "rows 2, 3." in report
    assert main(["dataset", "show", "row.csv"]) == 1
    assert "row.csv: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "kinds", "sides"),
    [
        ([chat("hi", "hello")], [], {"prompt": 2, "answer": 5}),
        ([{"conversations": [{"from": "human", "value": "hi"}]}], ["sharegpt_to_chat"], {}),
        ([{"prompt": "a", "chosen": "b", "rejected": "c"}], [], {"prompt": 1, "answer": 1}),
        ([{"id": 1, "query": "what", "answer": "that"}], ["jsonl_to_chat"], {"prompt": 4, "answer": 4}),
        ([{"slug": "x", "text": "a longer text"}], ["jsonl_to_chat"], {"prompt": 13, "answer": 1}),
        ([{"question": "what", "answer": 4, "n": 1}], ["jsonl_to_chat"], {"prompt": 4, "answer": 1}),
        ([{"n": 1}], [], {}),
    ],
)
def test_what_asks_and_what_answers_is_found(rows: list[Any], kinds: list[str], sides: dict[str, int]) -> None:
    data_profile = profile(*rows)
    assert [transform["kind"] for transform in data_profile.suggestion["transforms"]] == kinds
    assert {side: lengths.longest for side, lengths in data_profile.lengths.items()} == sides
    unknown = ["no two columns hold texts to ask and to answer with; add `transforms:` to the data block."]
    assert data_profile.problems == ([] if kinds or sides else unknown)


def test_tasks_are_measured_by_instruction_and_expected_answer() -> None:
    verifier = {"kind": "in_process", "fn_name": "exact_match", "expected": "4"}
    data_profile = profile({"task_id": "a", "instruction": "2+2?", "verifier": verifier})
    assert (data_profile.format, data_profile.lengths["prompt"].longest, data_profile.lengths["answer"].longest) == (
        "harbor_task",
        4,
        1,
    )
    assert data_profile.suggestion["transforms"] == []


def test_rows_without_two_texts_get_no_suggestion() -> None:
    with pytest.raises(WorkspaceError, match="no two columns hold texts"):
        suggest_transforms([{"n": 1}], "rows.jsonl")
