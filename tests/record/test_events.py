"""The journal: one door for events, each chained to the line before, whichever process writes or is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import DataError
from evsys_sdk.record.events import (
    FORMAT,
    Event,
    Journal,
    Kind,
    chain_head,
    count_events,
    load_events,
    read_events,
    verify_chain,
)
from evsys_sdk.record.layout import ExperimentFiles

EVENTS = 12


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The file of a journal with some events, one of them long."""
    with Journal.of(tmp_path) as journal:
        for number in range(EVENTS):
            journal.append(Kind.NOTE, text=f"note {number}" + " and more" * (20_000 if number == 5 else 1))
    return ExperimentFiles(tmp_path).journal


def test_an_event_has_id_time_kind_format_payload_and_the_hash_of_the_line_before(tmp_path: Path) -> None:
    with Journal.of(tmp_path) as journal:
        ids = [journal.append(Kind.ARM_STARTED, arm="a"), journal.append(Kind.ARM_ENDED, arm="a", status="completed")]
    first, second = read_events(tmp_path)
    assert (first.kind, first.get("arm"), first.format, first.prev) == (Kind.ARM_STARTED, "a", FORMAT, "")
    assert (second.id, len(second.prev)) == (ids[1], 32)
    assert second.to_dict() == {
        "id": ids[1],
        "time": second.time,
        "kind": "arm_ended",
        "arm": "a",
        "status": "completed",
    }
    assert verify_chain(ExperimentFiles(tmp_path).journal) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content,
        lambda content: content + b'{"kind": "note", "text": "later"}\n',
        lambda content: content + b'{"kind": "note", "text": "half of',
        lambda content: content + b"damaged\n" + b'{"kind": "note"}\n',
        lambda content: content.replace(b"note 3", b"NOTE 3"),
        lambda content: content[: len(content) // 2],
        lambda content: b"",
    ],
    ids=["nothing", "a line more", "half a line more", "a damaged line", "a word", "half of it gone", "all of it gone"],
)
def test_a_journal_that_was_read_before_is_reported_as_it_is_now(
    journal: Path, change: Callable[[bytes], bytes]
) -> None:
    before = load_events(journal.parent)
    assert before == list(read_events(journal.parent))
    assert len(before) == EVENTS
    journal.write_bytes(change(journal.read_bytes()))
    assert load_events(journal.parent) == load_events(journal.parent) == list(read_events(journal.parent))


def test_what_one_reader_does_with_its_events_changes_nothing_for_the_next(journal: Path) -> None:
    load_events(journal.parent).clear()
    assert len(load_events(journal.parent)) == EVENTS


@pytest.mark.parametrize(
    "lines",
    [
        b'{"kind": "note", "text": [1\n2]}\n{"kind": "looked"}\n',
        b'{"kind": "note"}, {"kind": "note"}\n{"kind": "looked"}\n',
        b'\n{"kind": "looked"}\n',
        b'[{"kind": "note"}]\n{"kind": "looked"}\n',
        b'\xff\n{"kind": "looked"}\n',
    ],
    ids=["two halves", "two in a line", "nothing", "a list", "no text"],
)
def test_only_a_line_that_is_one_object_is_an_event(tmp_path: Path, lines: bytes) -> None:
    ExperimentFiles(tmp_path).journal.write_bytes(lines)

    assert [event.kind for event in load_events(tmp_path)] == ["looked"]


def test_a_payload_cannot_take_the_place_of_what_every_event_has(tmp_path: Path) -> None:
    with Journal.of(tmp_path) as journal:
        known = journal.append(Kind.SEARCH_DECISION, id="mine", prev="mine", format=9, why="better")
    [event] = read_events(tmp_path)
    assert (event.id, event.prev, event.format, event.payload) == (known, "", FORMAT, {"why": "better"})


def change(lines: list[bytes]) -> None:
    lines[3] = lines[3].replace(b"note 3", b"note 4")


def remove(lines: list[bytes]) -> None:
    del lines[6]


def remove_the_first(lines: list[bytes]) -> None:
    del lines[0]


def insert(lines: list[bytes]) -> None:
    lines.insert(4, json.dumps({**json.loads(lines[4]), "text": "never said"}).encode() + b"\n")


def insert_one_without_a_hash(lines: list[bytes]) -> None:
    lines.insert(4, b'{"id": "1", "time": 1.0, "kind": "note", "text": "never said"}\n')


def reorder(lines: list[bytes]) -> None:
    lines[7], lines[8] = lines[8], lines[7]


def damage(lines: list[bytes]) -> None:
    lines[2] = lines[2][:10] + b"\n"


@pytest.mark.parametrize(
    ("tamper", "line"),
    [
        (change, 5),
        (remove, 7),
        (remove_the_first, 1),
        (insert, 6),
        (insert_one_without_a_hash, 5),
        (reorder, 8),
        (damage, 3),
    ],
)
def test_whatever_is_done_to_a_line_is_found_where_it_was_done(
    journal: Path, tamper: Callable[[list[bytes]], None], line: int
) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    assert verify_chain(journal) == []
    tamper(lines)
    journal.write_bytes(b"".join(lines))
    problems = verify_chain(journal)
    assert problems
    assert problems[0].startswith(f"{journal}:{line}: ")


def test_an_end_that_was_cut_off_is_found_by_the_head_that_was_noted(journal: Path) -> None:
    head = chain_head(journal)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    assert verify_chain(journal) == []
    assert chain_head(journal) != head


@pytest.mark.parametrize("torn", [b"{", b'{"format": 2, "id": "0123', b"\xff\xfe", b'{"text": "' + b"x" * 100_000])
def test_a_torn_last_line_is_no_alarm_and_is_repaired_by_the_next_event(journal: Path, torn: bytes) -> None:
    with journal.open("ab") as file:
        file.write(torn)
    assert verify_chain(journal) == []
    assert count_events(journal.parent) == EVENTS
    with Journal.of(journal.parent) as again:
        again.append(Kind.NOTE, text="after the kill")
    assert verify_chain(journal) == []
    assert [event.text("text") for event in read_events(journal.parent)][-1] == "after the kill"


def test_a_line_torn_by_another_process_while_the_journal_is_open_is_repaired_as_well(tmp_path: Path) -> None:
    path = ExperimentFiles(tmp_path).journal
    with Journal.of(tmp_path) as journal:
        journal.append(Kind.NOTE, text="one")
        with path.open("ab") as killed:
            killed.write(b'{"format": 2, "id"')
        journal.append(Kind.NOTE, text="two")
    assert [event.text("text") for event in read_events(tmp_path)] == ["one", "two"]
    assert verify_chain(path) == []


@given(cut=st.integers(1, 600))
def test_wherever_a_kill_cuts_the_journal_the_chain_continues(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    with Journal.of(folder) as journal:
        for number in range(4):
            journal.append(Kind.NOTE, text=f"note {number}")
    path = ExperimentFiles(folder).journal
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal.of(folder) as journal:
        journal.append(Kind.NOTE, text="again")
    assert verify_chain(path) == []


WRITER = """
import sys
from pathlib import Path
from evsys_sdk.record.events import Journal, Kind
with Journal.of(Path(sys.argv[1])) as journal:
    for number in range(int(sys.argv[2])):
        journal.append(Kind.NOTE, text=f"{sys.argv[3]} {number}" + " more" * (number % 50))
"""


def write_elsewhere(folder: Path, events: int, who: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(events), who])


def test_two_processes_that_append_a_thousand_events_each_keep_one_chain(tmp_path: Path) -> None:
    writers = [write_elsewhere(tmp_path, 1000, who) for who in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    texts = [" ".join(event.text("text").split()[:2]) for event in read_events(tmp_path)]
    assert sorted(texts) == sorted(f"{who} {number}" for who in ("a", "b") for number in range(1000))
    assert verify_chain(ExperimentFiles(tmp_path).journal) == []


def test_writers_that_are_killed_one_after_the_other_leave_one_chain(tmp_path: Path) -> None:
    path = ExperimentFiles(tmp_path).journal
    for who in range(4):
        before = count_events(tmp_path)
        writer = write_elsewhere(tmp_path, 1_000_000, str(who))
        while count_events(tmp_path) < before + 20:
            assert writer.poll() is None
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    with Journal.of(tmp_path) as journal:
        journal.append(Kind.ENDED, status="completed")
    assert verify_chain(path) == []


def test_events_of_version_1_are_read_and_said_to_have_no_chain(tmp_path: Path) -> None:
    path = ExperimentFiles(tmp_path).journal
    old = [{"id": str(number), "time": 1.0, "kind": "note", "text": "old"} for number in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old), encoding="utf-8")
    with Journal.of(tmp_path) as journal:
        journal.append(Kind.NOTE, text="new")
    assert [(event.format, event.text("text")) for event in read_events(tmp_path)] == [(1, "old")] * 3 + [(2, "new")]
    assert verify_chain(path) == [
        f"{path}: 3 events are of version 1, which kept no hashes, so changes to them cannot be detected."
    ]
    content = path.read_text("utf-8").replace('"2"', '"3"')  # the last of the old lines is what the new one refers to
    path.write_text(content, encoding="utf-8")
    assert len(verify_chain(path)) == 2


def test_a_kind_of_a_later_version_is_kept_as_it_is_called() -> None:
    event = Event.of({"id": "1", "time": "soon", "kind": "teleported", "where": 3, "format": 7})
    assert (event.kind, event.time, event.format, event.payload) == ("teleported", None, 7, {"where": 3})


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.of(tmp_path)
    journal.close()
    with pytest.raises(DataError, match="is closed"):
        journal.append(Kind.NOTE, text="late")
