"""The index is as true as the folders, however its cache fares."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.history import index as index_module
from evsys_sdk.history.cache import ViewCache
from evsys_sdk.history.index import HistoryIndex
from evsys_sdk.history.query import select
from evsys_sdk.record.layout import HISTORY_CACHE
from evsys_sdk.record.view.model import ExperimentView

from .recorded import BEGAN, write_experiment


def listed(*roots: Path) -> list[ExperimentView]:
    with HistoryIndex(list(roots)) as index:
        return select(index)


def ids(*roots: Path) -> list[str]:
    return [one.id for one in listed(*roots)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were read rather than taken from the cache."""
    seen: list[str] = []
    real = index_module._make_rows

    def counted(root: Path, changed: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
        seen.extend(name for _, name in changed)
        return real(root, changed)

    monkeypatch.setattr(index_module, "_make_rows", counted)
    return seen


def test_the_second_look_reads_nothing_and_says_the_same(tmp_path: Path, reads: list[str]) -> None:
    write_experiment(tmp_path, "one")
    write_experiment(tmp_path, "two", started=BEGAN + 1)
    (tmp_path / "foreign").mkdir()
    before = listed(tmp_path)
    assert [one.name for one in before] == ["two", "one"]
    assert sorted(reads) == ["foreign", "one", "two"]
    reads.clear()
    assert listed(tmp_path) == before
    assert reads == []


@pytest.mark.parametrize("name", ["journal.jsonl", "conclusion.json"])
def test_a_changed_file_is_seen(tmp_path: Path, name: str, reads: list[str]) -> None:
    path = write_experiment(tmp_path, "one")
    write_experiment(tmp_path, "two")
    ids(tmp_path)
    reads.clear()
    with (path / name).open("a", encoding="utf-8") as file:
        file.write('{"id": "1", "time": 1.0, "kind": "note", "text": "hm"}\n' if name == "journal.jsonl" else " ")
    found = listed(tmp_path)
    assert reads == ["one"]
    assert len(found) == 2


def test_a_new_conclusion_is_seen(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one", verdict=None)
    assert listed(tmp_path)[0].verdict == ""
    conclusion = {"verdict": "supported", "best_arm": "base", "best_score": 0.4}
    (path / "conclusion.json").write_text(json.dumps(conclusion), "utf-8")
    assert listed(tmp_path)[0].verdict == "supported"


def test_a_new_result_in_a_folder_without_journal_is_seen(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "old", verdict=None)
    (path / "journal.jsonl").unlink()
    result = path / "changed__seed43" / "run_result.json"
    content = result.read_text("utf-8")
    result.unlink()
    assert listed(tmp_path)[0].status == "running"
    result.write_text(content, "utf-8")
    os.utime(result.parent, ns=(1, 1))  # the clock of the file system is coarse
    assert listed(tmp_path)[0].status == "completed"


def test_a_folder_that_is_gone_is_gone(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    write_experiment(tmp_path, "two")
    assert len(ids(tmp_path)) == 2
    shutil.rmtree(path)
    assert [one.name for one in listed(tmp_path)] == ["two"]


def test_a_moved_root_brings_its_cache_and_has_new_paths(tmp_path: Path) -> None:
    write_experiment(tmp_path / "a", "one")
    ids(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert [one.folder for one in listed(tmp_path / "b")] == [tmp_path / "b" / "one"]


def test_experiments_of_several_roots_are_listed_together_in_order(tmp_path: Path) -> None:
    for number, root in enumerate(("a", "b", "a", "b")):
        write_experiment(tmp_path / root, f"n{number}", started=BEGAN + number)
    with HistoryIndex([tmp_path / "a", tmp_path / "b"]) as index:
        assert [one.name for one in select(index, limit=3)] == ["n3", "n2", "n1"]


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_cache_is_replaced(tmp_path: Path, damage: bytes, reads: list[str]) -> None:
    write_experiment(tmp_path, "one")
    before = listed(tmp_path)
    (tmp_path / HISTORY_CACHE).write_bytes(damage)
    assert listed(tmp_path) == before
    reads.clear()
    assert listed(tmp_path) == before
    assert reads == []


def test_a_cache_with_a_hole_in_it_is_replaced(tmp_path: Path) -> None:
    for number in range(60):
        write_experiment(tmp_path, f"n{number:02d}", seeds=(1,))
    before = listed(tmp_path)
    content = bytearray((tmp_path / HISTORY_CACHE).read_bytes())
    content[4096 : len(content) - 4096] = b"\x5a" * (len(content) - 8192)
    (tmp_path / HISTORY_CACHE).write_bytes(content)
    assert listed(tmp_path) == before


def test_a_cache_row_that_somebody_else_wrote_is_replaced(tmp_path: Path) -> None:
    write_experiment(tmp_path, "one")
    before = listed(tmp_path)
    with sqlite3.connect(tmp_path / HISTORY_CACHE) as db:
        db.execute("UPDATE details SET view = '{\"id\": 1}'")
    db.close()
    assert listed(tmp_path) == before


def test_a_cache_of_another_version_is_replaced(tmp_path: Path) -> None:
    write_experiment(tmp_path, "one")
    before = listed(tmp_path)
    with sqlite3.connect(tmp_path / HISTORY_CACHE) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    assert listed(tmp_path) == before


def test_a_locked_cache_is_done_without_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.history.cache._PATIENCE_S", 0.05)
    write_experiment(tmp_path, "one")
    ids(tmp_path)
    write_experiment(tmp_path, "two")
    holder = sqlite3.connect(tmp_path / HISTORY_CACHE, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        assert len(ids(tmp_path)) == 2
        assert (tmp_path / HISTORY_CACHE).exists()
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert len(ids(tmp_path)) == 2


def test_a_root_that_cannot_be_written_is_read_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite3.connect

    def refuse(path: str, timeout: float) -> sqlite3.Connection:
        if path != ":memory:":
            raise sqlite3.OperationalError("unable to open database file")
        return real(path, timeout=timeout)

    monkeypatch.setattr("evsys_sdk.history.cache.sqlite3.connect", refuse)
    write_experiment(tmp_path, "one")
    assert ids(tmp_path) == ["one-0a1b2c3d"]
    assert not (tmp_path / HISTORY_CACHE).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_root_with_an_old_cache_shows_what_is_new(tmp_path: Path) -> None:
    write_experiment(tmp_path, "one")
    ids(tmp_path)
    write_experiment(tmp_path, "two")
    (tmp_path / HISTORY_CACHE).chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert len(ids(tmp_path)) == 2
    finally:
        tmp_path.chmod(0o755)


def test_a_full_disk_while_the_cache_is_written_costs_only_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.history.cache import ViewCache

    real, calls = ViewCache._write, list[int]()

    def fail_once(self: ViewCache, rows: list[tuple[object, ...]], names: list[tuple[str]]) -> None:
        calls.append(len(rows))
        if len(calls) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        real(self, rows, names)

    write_experiment(tmp_path, "one")
    monkeypatch.setattr(ViewCache, "_write", fail_once)
    assert ids(tmp_path) == ["one-0a1b2c3d"]
    assert calls == [1, 1]


def test_many_readers_at_once_agree(tmp_path: Path) -> None:
    for number in range(40):
        write_experiment(tmp_path, f"n{number:02d}", started=BEGAN + number, seeds=(1,))
    code = (
        "import sys; from pathlib import Path\n"
        "from evsys_sdk.history.index import HistoryIndex\n"
        "from evsys_sdk.history.query import select\n"
        "with HistoryIndex([Path(sys.argv[1])]) as index: print(len(select(index)))\n"
    )
    readers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = [reader.communicate(timeout=60) for reader in readers]
    assert [out for out, _ in answers] == [b"40\n"] * 4, answers
    assert len(ids(tmp_path)) == 40


def test_an_experiment_without_an_end_is_running_while_its_lock_is_held_and_killed_after(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "live", status=None, verdict=None)
    code = (
        "import sys, time; from pathlib import Path\n"
        "from evsys_sdk.record.lock import folder_lock\n"
        "with folder_lock(Path(sys.argv[1]), what='it'):\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "locked\n"
    assert listed(tmp_path)[0].status == "running"
    owner.kill()
    owner.communicate()
    assert listed(tmp_path)[0].status == "killed"


def test_an_old_folder_in_which_nothing_happens_counts_as_killed(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "quiet", status=None, verdict=None)
    long_ago = time.time() - 7200
    for entry in [*path.rglob("*"), path]:
        os.utime(entry, (long_ago, long_ago))
    assert listed(tmp_path)[0].status == "killed"


def test_a_root_that_does_not_exist_has_nothing(tmp_path: Path) -> None:
    assert ids(tmp_path / "nowhere") == []


def test_a_folder_whose_name_cannot_be_shown_is_passed_over_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_experiment(tmp_path, "one")
    write_experiment(tmp_path, "two", folder="two\nlines")
    assert ids(tmp_path) == ["one-0a1b2c3d"]
    assert "two\\nlines" in caplog.text


def test_links_that_lead_nowhere_and_pipes_are_no_reason_to_fail_or_to_wait(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (path / "loop").symlink_to(path / "loop")
    (tmp_path / "pipes").mkdir()
    for name in ("config.json", "journal.jsonl", "conclusion.json"):
        os.mkfifo(tmp_path / "pipes" / name)
    assert ids(tmp_path) == ["one-0a1b2c3d"]


def test_a_first_look_that_came_to_no_end_is_settled_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(tmp_path, "one")
    with monkeypatch.context() as killed:
        killed.setattr(ViewCache, "add_indexes", lambda _: None)
        HistoryIndex([tmp_path]).close()
    for _ in range(2):
        with HistoryIndex([tmp_path]) as index:
            assert [one.name for one in index.views()] == ["one"]
    with sqlite3.connect(tmp_path / HISTORY_CACHE) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] > 0
        indexes = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert {"freshness", "ranking", "run_folders"} <= indexes


def test_a_reader_that_is_killed_leaves_a_usable_cache(tmp_path: Path) -> None:
    for number in range(30):
        write_experiment(tmp_path, f"n{number:02d}", seeds=(1,))
    code = (
        "import os, sys; from pathlib import Path\n"
        "from evsys_sdk.history import cache, index\n"
        "index._BATCH = 10\n"
        "real, calls = cache.ViewCache._write, []\n"
        "def write(self, rows, names):\n"
        "    if calls: os.kill(os.getpid(), 9)\n"
        "    calls.append(1); real(self, rows, names)\n"
        "cache.ViewCache._write = write\n"
        "index.HistoryIndex([Path(sys.argv[1])])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert len(ids(tmp_path)) == 30
