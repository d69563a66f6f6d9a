"""Notes and invalidations are events that are added; nothing is ever changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk import DataError
from evsys_sdk.history.notes import add_note, invalidate, reinstate
from evsys_sdk.record.events import read_events
from evsys_sdk.record.reader import ExperimentRecord
from evsys_sdk.record.view.build import view

from .recorded import write_experiment


def test_a_note_is_appended_and_what_was_there_stays(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    before = (path / "journal.jsonl").read_bytes()
    event = add_note(path, "  The loss wobbles.  ", author="me")
    after = (path / "journal.jsonl").read_bytes()
    assert after.startswith(before)
    last = list(read_events(path))[-1].to_dict()
    assert (last["id"], last["kind"], last["text"], last["author"]) == (event, "note", "The loss wobbles.", "me")


def test_an_experiment_is_invalidated_and_counts_again_when_that_is_undone(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    invalidate(path, "wrong split")
    found = view(ExperimentRecord(path))
    assert (found.invalidated, found.counts) == ("wrong split", False)
    reinstate(path, "it was right")
    assert view(ExperimentRecord(path)).counts


def test_there_must_be_something_to_undo(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    with pytest.raises(DataError, match="is not invalidated"):
        reinstate(path)


@pytest.mark.parametrize("text", ["", "   \n"])
def test_empty_words_are_refused(tmp_path: Path, text: str) -> None:
    path = write_experiment(tmp_path, "one")
    with pytest.raises(DataError, match="The note is empty"):
        add_note(path, text)
    with pytest.raises(DataError, match="Give it with --reason"):
        invalidate(path, text)


def test_secrets_do_not_reach_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "opensesame99")
    path = write_experiment(tmp_path, "one")
    add_note(path, "it used opensesame99")
    assert b"opensesame99" not in (path / "journal.jsonl").read_bytes()


def test_a_half_written_line_before_the_note_does_not_swallow_it(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    with (path / "journal.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"id": "cut')
    add_note(path, "still here")
    found = view(ExperimentRecord(path))
    assert [note.text for note in found.notes] == ["still here"]


def test_an_old_folder_gets_a_journal_with_its_first_note(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "old", verdict=None)
    (path / "journal.jsonl").unlink()
    add_note(path, "from before journals")
    found = view(ExperimentRecord(path))
    assert (found.status, found.notes[0].text) == ("completed", "from before journals")
