"""`evsys dataset` and `evsys benchmark`: list, show, add and verify, for people and with `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

VERBS = ("list", "show", "add", "verify")


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def chat_row(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]}


def task_row(number: int) -> dict[str, Any]:
    return {
        "task_id": f"t{number}",
        "instruction": "Say ok.",
        "verifier": {"kind": "in_process", "fn_name": "contains"},
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project to stand in."""
    return tmp_path


class Evsys:
    """Runs a command and keeps its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.code, self.out, self.err = 0, "", ""

    def __call__(self, *arguments: str) -> str:
        self.code = main(list(arguments))
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def evsys(capsys: pytest.CaptureFixture[str]) -> Evsys:
    return Evsys(capsys)


def cached_file(project: Path, id: str) -> Path:
    return project / ".evsys" / "datasets" / f"{id}.jsonl"


def damage(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-3])


def test_add_copies_the_rows_and_says_what_they_are(project: Path, evsys: Evsys) -> None:
    path = write_rows(project / "rows.jsonl", [chat_row("a"), chat_row("b"), {"query": "c"}])

    out = evsys("dataset", "add", str(path), "--name", "sft")

    assert evsys.code == 0
    first, second = out.splitlines()
    assert first == "added dataset sft@v1:train, 3 rows (2 chat_messages, 1 unknown)"
    assert cached_file(project, second.removeprefix("id: ")).read_bytes() == path.read_bytes()
    assert evsys("dataset", "add", str(path), "--name", "sft").startswith("already there: dataset sft@v1:train")


def test_add_answers_with_the_manifest(project: Path, evsys: Evsys) -> None:
    path = write_rows(project / "rows.jsonl", [chat_row("a")])
    answer = evsys.json("dataset", "add", str(path), "--name", "sft", "--version", "4", "--split", "test")
    assert answer["added"] is True
    assert (answer["name"], answer["version"], answer["split"], answer["rows"]) == ("sft", 4, "test", 1)
    assert answer["lineage"]["source"] == "rows.jsonl"


@pytest.mark.parametrize(
    ("line", "message"),
    [("[1, 2]", "rows.jsonl:2: a row must be a JSON object"), ("{oops", "rows.jsonl:2: this is not JSON")],
)
def test_add_refuses_rows_that_are_not_objects(project: Path, evsys: Evsys, line: str, message: str) -> None:
    (project / "rows.jsonl").write_text(f'{{"a": 1}}\n{line}\n', encoding="utf-8")
    answer = evsys.json("dataset", "add", "rows.jsonl", "--name", "sft")
    assert evsys.code == 1
    assert answer["error"] == "DataError"
    assert message in answer["message"]
    assert evsys.json("dataset", "list") == []


def test_a_benchmark_of_other_rows_is_refused_with_the_line_and_the_transform(project: Path, evsys: Evsys) -> None:
    write_rows(project / "rows.jsonl", [task_row(1), chat_row("a")])
    assert evsys("benchmark", "add", "rows.jsonl", "--name", "exam") == ""
    assert evsys.code == 1
    assert "rows.jsonl:2:" in evsys.err
    assert "chat_to_harbor_task" in evsys.err
    assert "Traceback" not in evsys.err


def test_a_benchmark_can_be_added_listed_shown_and_verified(project: Path, evsys: Evsys) -> None:
    write_rows(project / "rows.jsonl", [task_row(1), task_row(2)])
    id = evsys.json("benchmark", "add", "rows.jsonl", "--name", "exam", "--split", "val")["id"]
    assert [one["id"] for one in evsys.json("benchmark", "list")] == [id]
    assert evsys.json("benchmark", "show", "exam")["manifest"]["split"] == "val"
    assert evsys.json("benchmark", "verify") == [
        {"id": id, "reference": "exam@v1:val", "intact": True, "problem": None}
    ]
    assert evsys.json("dataset", "list") == []


def test_list_is_an_aligned_table_of_what_is_cached_and_what_is_not(
    project: Path, evsys: Evsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evsys("dataset", "list") == "No datasets yet. Add one with: evsys dataset add PATH --name NAME\n"
    write_rows(project / "data" / "datasets" / "greetings" / "v2" / "train.jsonl", [chat_row("a")] * 5)
    evsys("dataset", "add", str(write_rows(project / "a.jsonl", [{"x": 1}])), "--name", "sft")

    narrow = evsys("dataset", "list").splitlines()
    monkeypatch.setenv("COLUMNS", "160")
    lines = evsys("dataset", "list").splitlines()

    assert narrow[0].split() == ["name", "version", "split", "id", "rows", "where"]
    assert lines[0].split() == ["name", "version", "split", "id", "rows", "where", "format", "size"]
    assert lines[2].split()[:3] == ["greetings", "v2", "train"]
    assert lines[2].split()[4:] == ["5", "project", "chat_messages", "445", "B"]
    assert lines[3].split()[4:] == ["1", "cache", "(added)", "unknown", "9", "B"]
    assert len({line.index(text) for line, text in zip(lines[2:], ("project", "cache (added)"), strict=True)}) == 1


def test_list_says_what_is_damaged(project: Path, evsys: Evsys) -> None:
    write_rows(project / "a.jsonl", [chat_row("a")])
    id = evsys.json("dataset", "add", "a.jsonl", "--name", "sft")["id"]
    damage(cached_file(project, id))
    out = evsys("dataset", "list")
    assert "cache (added) (damaged)" in out
    assert "sft@v1:train: it is cut off" in out


def test_show_prints_the_manifest_and_as_many_rows_as_asked(project: Path, evsys: Evsys) -> None:
    write_rows(project / "a.jsonl", [chat_row("größer"), chat_row("b"), chat_row("c"), chat_row("d")])
    evsys("dataset", "add", "a.jsonl", "--name", "sft")
    out = evsys("dataset", "show", "sft@v1", "--rows", "2")
    for line in ("name: sft", "version: v1", "rows: 4", "format: chat_messages", "origin: added", "source: a.jsonl"):
        assert line in out.splitlines()
    assert "größer" in out
    assert ("row 2:" in out, "row 3:" in out) == (True, False)
    assert len(evsys.json("dataset", "show", "sft")["preview"]) == 3


@pytest.mark.parametrize("arguments", [("show", "sfd"), ("verify", "sfd")])
def test_an_unknown_name_gets_the_closest_one_and_exit_code_1(
    project: Path, evsys: Evsys, arguments: tuple[str, str]
) -> None:
    write_rows(project / "a.jsonl", [chat_row("a")])
    evsys("dataset", "add", "a.jsonl", "--name", "sft")
    assert evsys("dataset", *arguments) == ""
    assert evsys.code == 1
    assert "did you mean 'sft'" in evsys.err


def test_verify_exits_1_and_says_what_is_wrong_with_each(project: Path, evsys: Evsys) -> None:
    ids: list[str] = []
    for name in ("good", "bad"):
        write_rows(project / f"{name}.jsonl", [chat_row(name)])
        ids.append(evsys.json("dataset", "add", f"{name}.jsonl", "--name", name)["id"])
    assert evsys("dataset", "verify").splitlines()[-1] == "2 intact."
    assert evsys.code == 0
    damage(cached_file(project, ids[1]))

    lines = evsys("dataset", "verify").splitlines()

    assert evsys.code == 1
    assert f"ok       {ids[0]}" in lines
    assert any(line.startswith(f"DAMAGED  {ids[1]}: it is cut off") for line in lines)
    assert lines[-1].startswith("1 of 2 damaged.")
    verdicts = {verdict["id"]: verdict["intact"] for verdict in evsys.json("dataset", "verify")}
    assert (evsys.code, verdicts) == (1, {ids[0]: True, ids[1]: False})
    assert evsys.json("dataset", "verify", "good")[0]["intact"]
    assert evsys.code == 0


def test_verify_of_an_empty_workspace_is_fine(project: Path, evsys: Evsys) -> None:
    assert evsys("dataset", "verify") == "No dataset is cached, so there is nothing to verify.\n"
    assert evsys.code == 0
    assert list(project.iterdir()) == []


def test_verbs_work_from_a_folder_inside_the_project(
    project: Path, evsys: Evsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(project / "a.jsonl", [chat_row("a")])
    evsys("dataset", "add", "a.jsonl", "--name", "sft")
    inside = project / "experiments" / "first"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert [one["name"] for one in evsys.json("dataset", "list")] == ["sft"]


@pytest.mark.parametrize("group", ["dataset", "benchmark"])
def test_help_names_every_verb_and_each_has_json(evsys: Evsys, group: str) -> None:
    out = evsys(group, "--help")
    for verb in VERBS:
        assert verb in out
        assert "--json" in evsys(group, verb, "--help")
