"""The ledger of an experiment: shared by threads and processes, and true after any crash."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.record.ledger import Intervals, Spend, read_tally
from evsys_sdk.spend.ledger import SpendLedger, open_ledger


def fresh(folder: Path) -> SpendLedger:
    """The ledger as another process sees it."""
    return SpendLedger(folder / "spend.jsonl")


def test_what_is_added_is_found_in_total_and_by_arm(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    ledger.add("a", Spend(tokens_trained=100, usd=0.5))
    ledger.add("b", Spend(tokens_sampled=7, gpu_s=2.0))
    ledger.add("a", Spend(tokens_trained=1))
    assert (ledger.total().tokens, ledger.total().usd, ledger.total().gpu_s) == (108, 0.5, 2.0)
    assert (ledger.of("a").tokens_trained, ledger.of("b").tokens_sampled) == (101, 7)
    assert ledger.of("nobody") == Spend()
    assert read_tally(tmp_path).arms() == ["a", "b"]


def test_an_experiment_that_continues_starts_with_what_it_has_spent(tmp_path: Path) -> None:
    fresh(tmp_path).add("a", Spend(tokens_trained=100))
    assert fresh(tmp_path).total().tokens == 100


def test_a_reader_sees_what_others_add_later(tmp_path: Path) -> None:
    reader, writer = fresh(tmp_path), fresh(tmp_path)
    assert reader.total() == Spend()
    for _ in range(3):
        writer.add("a", Spend(tokens_trained=10))
        reader.total()
    assert reader.total().tokens == 30


def test_reading_leaves_no_file_behind(tmp_path: Path) -> None:
    assert fresh(tmp_path / "nowhere").total() == Spend()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_half_of_a_record_costs_no_other_record(tmp_path: Path, cut: int) -> None:
    first = fresh(tmp_path)
    first.add("a", Spend(tokens_trained=5))
    first.add("a", Spend(tokens_trained=50))
    first.close()
    path = tmp_path / "spend.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    after = fresh(tmp_path)
    after.add("b", Spend(tokens_trained=500))
    after.add("b", Spend(tokens_trained=5000))
    assert fresh(tmp_path).total().tokens in (5505, 5555)  # the whole record is there when only its end is cut
    assert after.total() == fresh(tmp_path).total()


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "spend.jsonl").write_bytes(b'\xff\xfe\n[]\n"x"\n{"arm": "a"}\n{"arm": "a", "at": "x"}\n{"at": 1}\n')
    ledger = fresh(tmp_path)
    ledger.add("a", Spend(tokens_trained=1))
    assert ledger.total().tokens == 1


@pytest.mark.parametrize(
    "amounts",
    ['"usd": NaN', '"usd": Infinity', '"usd": -1', '"tokens_trained": -5', '"tokens_sampled": 1e999', '"wall_s": -3'],
)
def test_what_no_one_can_have_spent_is_passed_over(tmp_path: Path, amounts: str) -> None:
    (tmp_path / "spend.jsonl").write_text(f'{{"arm": "a", "at": 1.0, {amounts}}}\n', "utf-8")
    assert fresh(tmp_path).total() == read_tally(tmp_path).total() == Spend()


@given(st.data())
def test_the_reader_of_the_file_counts_as_the_ledger_does(data: st.DataObject) -> None:
    amounts = st.integers(0, 1000)
    with tempfile.TemporaryDirectory() as folder:
        ledger = fresh(Path(folder))
        for _ in range(data.draw(st.integers(0, 8))):
            spend = Spend(data.draw(amounts), data.draw(amounts), data.draw(amounts) / 8, data.draw(amounts) / 8)
            key = data.draw(st.sampled_from([None, None, "one", "two"]))
            ledger.add(data.draw(st.sampled_from(["", "a", "b"])), spend, key=key)
        tally = read_tally(Path(folder))
        assert tally.total() == ledger.total()
        assert {arm: tally.of(arm) for arm in tally.arms()} == {arm: ledger.of(arm) for arm in tally.arms()}
        ledger.close()


def test_several_threads_lose_nothing(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)

    def work(arm: str) -> None:
        for _ in range(200):
            ledger.add(arm, Spend(tokens_trained=1))
            ledger.total()

    threads = [threading.Thread(target=work, args=(f"arm{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.total().tokens_trained == 800
    assert fresh(tmp_path).of("arm2").tokens_trained == 200


_WORKER = """
import sys
from pathlib import Path
from evsys_sdk.spend.ledger import open_ledger
from evsys_sdk.record.ledger import Spend
ledger = open_ledger(Path(sys.argv[1]))
while True:
    ledger.add(sys.argv[2], Spend(tokens_trained=1, usd=0.25))
    print(ledger.of(sys.argv[2]).tokens_trained, flush=True)
"""


def test_processes_that_are_killed_leave_all_they_spent(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, str(tmp_path), f"w{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    reported: dict[str, int] = {}
    for number, worker in enumerate(workers):
        assert worker.stdout is not None
        for _ in range(50):
            reported[f"w{number}"] = int(worker.stdout.readline())
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
    ledger = fresh(tmp_path)
    for arm, tokens in reported.items():
        assert ledger.of(arm).tokens_trained >= tokens
    assert ledger.total().usd == pytest.approx(0.25 * ledger.total().tokens_trained)


def test_a_key_is_counted_once_for_all_processes(tmp_path: Path) -> None:
    first, other = fresh(tmp_path), fresh(tmp_path)
    for ledger in (first, other, first):
        ledger.add("a", Spend(usd=2.0), key="baseline")
    assert (first.total().usd, other.total().usd) == (2.0, 2.0)
    # As if both had looked before either wrote.
    line = json.dumps({"arm": "b", "at": 1.0, "usd": 2.0, "key": "baseline"})
    with (tmp_path / "spend.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    assert first.total().usd == 2.0


def test_a_full_disk_keeps_the_count_and_writes_it_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = fresh(tmp_path)
    ledger.add("a", Spend(tokens_trained=1, wall_s=1.0))
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        real(descriptor, data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    ledger.add("a", Spend(tokens_trained=10, wall_s=0.5))
    ledger.add("b", Spend(tokens_trained=100))
    assert (ledger.total().tokens, ledger.of("a").tokens, ledger.of("b").tokens) == (111, 11, 100)
    monkeypatch.setattr(os, "write", real)
    ledger.add("a", Spend(tokens_trained=1000))
    assert ledger.total().tokens == fresh(tmp_path).total().tokens == 1111


def test_a_ledger_travels_to_another_process_as_its_path(tmp_path: Path) -> None:
    ledger = fresh(tmp_path)
    ledger.add("a", Spend(tokens_trained=3))
    assert pickle.loads(pickle.dumps(ledger)).total().tokens == 3


def test_two_arms_at_the_same_time_take_the_time_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    ledger = fresh(tmp_path)
    ledger.add("a", Spend(wall_s=10.0, gpu_s=10.0))
    now[0] = 1005.0
    ledger.add("b", Spend(wall_s=10.0, gpu_s=10.0))
    assert (ledger.total().wall_s, ledger.of("a").wall_s, ledger.total().gpu_s) == (15.0, 10.0, 20.0)
    now[0] = 90_000.0  # a day later it continues
    ledger.add("a", Spend(wall_s=5.0))
    assert (ledger.total().wall_s, ledger.of("a").wall_s) == (20.0, 15.0)


def test_time_between_arms_counts_while_the_experiment_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    ledger = fresh(tmp_path)
    with ledger.running():
        now[0] += 1.0
        ledger.add("a", Spend(wall_s=1.0))
        now[0] += 50.0
    assert ledger.total().wall_s == 51.0
    assert read_tally(tmp_path).arms() == ["a"]


def test_the_record_says_null_where_a_price_is_not_known() -> None:
    known, unknown = Spend(usd=1.5), Spend(usd=0.5, unpriced=True)
    assert known.to_dict()["usd"] == 1.5
    assert (known + unknown).to_dict()["usd"] is None
    assert list(known.to_dict()) == ["tokens_trained", "tokens_sampled", "usd", "wall_s", "gpu_s"]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30))
def test_intervals_cover_what_their_union_covers(stretches: list[tuple[int, int]]) -> None:
    intervals = Intervals()
    covered: set[int] = set()
    for start, length in stretches:
        intervals.add(start, start + length)
        covered |= set(range(start, start + length))
    assert intervals.length == len(covered)
    bounds = [bound for pair in zip(intervals.starts, intervals.ends, strict=True) for bound in pair]
    assert bounds == sorted(set(bounds))


def test_a_ledger_does_not_grow_with_the_steps_it_has_seen(tmp_path: Path) -> None:
    ledger = SpendLedger(tmp_path / "spend.jsonl")
    for step in range(300):
        ledger.add("a", Spend(tokens_trained=1, wall_s=60.0), step=step)
    starts: Any = ledger._tally._accounts["a"].clock.starts  # pyright: ignore[reportPrivateUsage]
    assert len(starts) == 1


def test_the_arms_of_a_process_share_one_ledger(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.add("a", Spend(tokens_trained=1))
    ledger.close()
    assert open_ledger(tmp_path) is ledger
    assert open_ledger(tmp_path).total().tokens == 1
    for number in range(40):
        open_ledger(tmp_path / str(number))
    assert open_ledger(tmp_path).total().tokens == 1


def test_a_folder_that_was_made_anew_starts_from_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path / "e")
    ledger.add("a", Spend(tokens_trained=7))
    ledger.close()
    (tmp_path / "e" / "spend.jsonl").unlink()
    assert open_ledger(tmp_path / "e").total() == Spend()
    (tmp_path / "kept").write_bytes(b"")  # so that the file cannot get the same place on the disk again
    ledger.add("a", Spend(tokens_trained=1))
    assert ledger.total().tokens == fresh(tmp_path / "e").total().tokens == 1
