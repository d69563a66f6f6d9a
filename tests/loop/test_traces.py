"""The store of traces: each once, nothing redactable in it; and rounds: nothing held out is ever trained on."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import DataError
from evsys_sdk.loop.traces.privacy import Pseudonyms
from evsys_sdk.loop.traces.rounds import read_rounds, seal_round
from evsys_sdk.loop.traces.store import LiveStore, TraceStore, import_traces
from evsys_sdk.record.jsonl_file import JsonlFile

type Write = Callable[..., Path]


def chat(number: int, question: str, answer: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"id": f"c{number}", "time": 1_700_000_000 + number, "messages": messages, **fields}


def test_reading_a_file_twice_adds_nothing(project: Path, write: Write) -> None:
    file = write("a.jsonl", *(chat(n, f"q{n}", "a") for n in range(5)))
    assert import_traces("s", [file]).added == 5
    again = import_traces("s", [file, write("b.jsonl", chat(9, "new", "a"))])
    assert (again.added, again.duplicates) == (1, 5)
    assert len(list(TraceStore("s").read())) == 6


def test_an_import_that_was_killed_in_a_line_is_gone_on_with(project: Path, write: Write) -> None:
    file = write("a.jsonl", *(chat(n, f"q{n}", "a") for n in range(5)))
    import_traces("s", [file])
    whole = TraceStore("s").file.read_bytes()
    for cut in range(1, len(whole), 97):
        TraceStore("s").file.write_bytes(whole[:cut])
        import_traces("s", [file])
        assert sorted(TraceStore("s").file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_what_a_full_disk_refused_is_taken_when_it_is_sent_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveStore("s")
    assert live.add([chat(1, "q1", "a")], "openai_chat").added == 1
    with monkeypatch.context() as full:
        full.setattr(JsonlFile, "append_line", refuse)
        with pytest.raises(OSError, match="No space left"):
            live.add([chat(2, "q2", "a")], "openai_chat")
    [second] = {trace["id"] for trace in _converted(chat(2, "q2", "a"))}
    assert not live.has(second)
    assert live.add([chat(2, "q2", "a")], "openai_chat").added == 1
    assert live.has(second)
    assert len(list(TraceStore("s").read())) == 2


def refuse(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def _converted(record: dict[str, Any]) -> list[dict[str, Any]]:
    LiveStore("other").add([record], "openai_chat")
    return list(TraceStore("other").read())


def test_a_salt_that_was_never_written_is_no_salt(project: Path) -> None:
    path = TraceStore("s").folder / "salt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")  # who made it was killed before writing
    first = TraceStore("s").salt()
    assert len(first) == 16
    assert TraceStore("s").salt() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in path.parent.iterdir()} == {"salt", ".salt.lock"}


def test_all_who_ask_for_a_salt_at_once_get_the_same(project: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: TraceStore("s").salt(), range(8)))) == 1


SECRETS = {
    "mail bob.smith+x@mail.example.co.uk now": "bob.smith",
    "card 4111 1111 1111 1111 ok": "4111",
    "iban DE89 3704 0044 0532 0130 00 here": "3704",
    "call +49 30 901820 or (415) 555-2671": "901820",
    "from 192.168.10.77 today": "192.168.10.77",
    "my key sk-abcdefghij1234567890abcd": "sk-abcdefghij",
    "ghp_abcdefghijklmnopqrstuvwxyz012345": "ghp_abcdef",
    "ssn 078-05-1120": "078-05-1120",
    "see 2001:db8::ff00:42:8329 please": "ff00:42",
}


@pytest.mark.parametrize("place", ["user", "assistant", "comment", "conversation", "tool"])
@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_nothing_redactable_reaches_the_disk(project: Path, write: Write, place: str, text: str, secret: str) -> None:
    row = chat(1, text if place == "user" else "q", text if place == "assistant" else "a")
    if place == "comment":
        row["feedback"] = [{"name": "thumb", "value": "up", "comment": text}]
    if place == "conversation":
        row["metadata"] = {"conversation_id": text}
    if place == "tool":
        call = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"x": text})}}
        row["messages"][1]["tool_calls"] = [call]
    report = import_traces("s", [write("a.jsonl", row)])
    assert report.redacted
    stored = b"".join(path.read_bytes() for path in TraceStore("s").folder.iterdir() if path.name != "salt")
    assert secret.encode() not in stored
    assert json.loads(stored)["messages"][0]["role"] == "user"


def test_a_person_has_the_same_pseudonym_in_one_store_only(project: Path) -> None:
    here, there = Pseudonyms(b"a" * 16), Pseudonyms(b"b" * 16)
    text = "a@example.com wrote to b@example.com, then A@example.com again"
    first, second, third = (word for word in here.mask_text(text).replace(",", "").split() if word.startswith("["))
    assert first == third != second
    assert first not in there.mask_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "version 1.2.3 of 2026-11-15",
        "12345678 items",
        "1,234,567.89",
        "call f(x, y) at 10:30:00",
        "order 4111111111111112",
    ],
)
def test_ordinary_numbers_stay(text: str) -> None:
    assert Pseudonyms(b"s" * 16).mask_text(text) == text


def test_personal_things_stay_where_that_is_requested(project: Path, write: Write) -> None:
    import_traces(
        "s", [write("a.jsonl", chat(1, "I am bob@example.com, sk-abcdefghij1234567890abcd", "a"))], keep_personal=True
    )
    [trace] = TraceStore("s").read()
    assert "bob@example.com" in trace["messages"][0]["content"]
    assert "sk-abc" not in trace["messages"][0]["content"]


def test_the_newest_are_held_out_and_never_trained_on(project: Path, write: Write) -> None:
    import_traces("s", [write("a.jsonl", *(chat(n, f"q{n}", f"a{n}") for n in range(20)))])
    first = seal_round("s", share=0.25)
    assert (first.taken, first.rows, first.tasks) == (20, 15, 5)
    import_traces("s", [write("b.jsonl", *(chat(n, f"q{n}", f"a{n}") for n in range(20, 30)))])
    second = seal_round("s", share=0.2)
    assert (second.number, second.taken, second.rows, second.tasks) == (2, 10, 23, 2)
    workspace = Workspace()
    trained = {row["metadata"]["trace"] for row in workspace.pull_dataset(id=second.dataset).rows()}
    held_out = {id for entry in read_rounds("s") for id in entry["held_out"]}
    assert len(held_out) == 7
    assert not trained & held_out
    tasks = list(workspace.pull_benchmark(id=first.benchmark).rows())
    assert [task["verifier"]["expected"] for task in tasks] == [f"a{n}" for n in range(15, 20)]
    assert workspace.pull_dataset(name="s").id == second.dataset


def test_what_the_hold_out_knows_is_not_in_the_training_rows(project: Path, write: Write) -> None:
    rows = [chat(n, f"q{n}", f"a{n}", metadata={"conversation_id": f"k{n}"}) for n in range(10)]
    rows[1]["metadata"] = rows[9]["metadata"]  # one conversation, early and late
    rows[2]["messages"][0]["content"] = "  Q8! "  # the question of a later one
    import_traces("s", [write("a.jsonl", *rows)])
    sealed_round = seal_round("s", share=0.2)
    assert (sealed_round.rows, sealed_round.tasks) == (6, 2)
    assert sealed_round.left_out == {
        "its conversation continues in the hold-out": 1,
        "its question is in the hold-out": 1,
    }
    import_traces("s", [write("b.jsonl", *(chat(n, f"q{n}", f"a{n}") for n in range(20, 30)))])
    later = Workspace().pull_dataset(id=seal_round("s", share=0.2).dataset).rows()
    assert {row["messages"][0]["content"] for row in later} == {f"q{n}" for n in (0, 3, 4, 5, 6, 7, *range(20, 28))}


def test_only_good_answers_are_learned_and_expected(project: Path, write: Write) -> None:
    rows = [chat(n, f"q{n}", f"a{n}", reward=n % 2) for n in range(20)]
    import_traces("s", [write("a.jsonl", *rows)])
    sealed_round = seal_round("s", share=0.2, min_reward=0.5)
    assert (sealed_round.rows, sealed_round.tasks) == (8, 2)
    rewards = {row["metadata"]["reward"] for row in Workspace().pull_dataset(id=sealed_round.dataset).rows()}
    assert rewards == {1.0}


def test_traces_that_cannot_be_split_by_time_are_refused(project: Path, write: Write) -> None:
    import_traces("s", [write("a.jsonl", *({**chat(n, f"q{n}", "a"), "time": None} for n in range(10)))])
    with pytest.raises(DataError, match="cannot be split by time"):
        seal_round("s")
    with pytest.raises(DataError, match="too few to hold out"):
        seal_round("s", share=0.01)


def test_the_commands(project: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", *(chat(n, f"q{n} x{n}@example.com", f"a{n}", feedback="up") for n in range(20)))
    assert main(["traces", "list"]) == 0
    assert "There are no traces yet" in capsys.readouterr().out
    assert main(["traces", "import", "a.jsonl", "--name", "support"]) == 0
    out = capsys.readouterr().out
    assert "20 traces added" in out
    assert "20 EMAIL" in out
    assert main(["traces", "seal", "support", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 16
    assert main(["traces", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "support", "traces": 20, "rounds": 1, "taken": 20}]
    assert main(["traces", "import", "a.jsonl", "--name", "Sup port"]) == 1
    assert "cannot be called 'Sup port'" in capsys.readouterr().err
    assert main(["traces", "import", "a.jsonl", "--name", "support", "--feedback", "x=1"]) == 1
    assert main(["traces", "seal", "support", "--verifier", "exact_mach"]) == 1
    assert "did you mean 'exact_match'" in capsys.readouterr().err
