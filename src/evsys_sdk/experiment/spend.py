"""What an experiment has spent, in a file that its arms share.

Arms run in several threads and processes, and any of them may be killed. Each adds small records to one append-only
file; a reader keeps its place and reads only what is new. Nothing is ever taken back: a step that a killed run repeats
was paid for twice, and is counted twice.

    ledger = open_ledger(experiment_dir)
    ledger.add("sft__seed1", Spend(tokens_trained=2048, wall_s=0.4))
    ledger.total().tokens, ledger.of("sft__seed1").wall_s

Time is counted as the union of the intervals that records cover, so that two arms at the same time take it once, and
the pause between a stop and a resume takes none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..log import get_logger

SPEND_FILE = "spend.jsonl"
_EXPERIMENT = ""
"""The arm of what belongs to the experiment as a whole."""


@dataclass(frozen=True, slots=True)
class Spend:
    """What was used up."""

    tokens_trained: int = 0
    tokens_sampled: int = 0
    """Tokens that models wrote: in rollouts, evaluations and baselines."""
    usd: float = 0.0
    """The part that has a price."""
    wall_s: float = 0.0
    gpu_s: float = 0.0
    unpriced: bool = False
    """Whether some of it has no known price, so that `usd` is less than what was spent."""

    @property
    def tokens(self) -> int:
        """Trained on and sampled together."""
        return self.tokens_trained + self.tokens_sampled

    def __bool__(self) -> bool:
        return self != Spend()

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.tokens_trained + other.tokens_trained,
            self.tokens_sampled + other.tokens_sampled,
            self.usd + other.usd,
            self.wall_s + other.wall_s,
            self.gpu_s + other.gpu_s,
            self.unpriced or other.unpriced,
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of the record; `usd` is null where it is not fully known."""
        return {
            "tokens_trained": self.tokens_trained,
            "tokens_sampled": self.tokens_sampled,
            "usd": None if self.unpriced else round(self.usd, 9),
            "wall_s": round(self.wall_s, 3),
            "gpu_s": round(self.gpu_s, 3),
        }


@dataclass(slots=True)
class Intervals:
    """Stretches of time, merged where they touch."""

    starts: list[float] = field(default_factory=list[float])
    ends: list[float] = field(default_factory=list[float])
    length: float = 0.0

    def add(self, start: float, end: float) -> None:
        """Cover one more stretch."""
        low = bisect_left(self.ends, start)
        high = bisect_right(self.starts, end)
        if low < high:
            start, end = min(start, self.starts[low]), max(end, self.ends[high - 1])
        self.length += (end - start) - sum(self.ends[at] - self.starts[at] for at in range(low, high))
        self.starts[low:high], self.ends[low:high] = [start], [end]


@dataclass(slots=True)
class _Account:
    spend: Spend = field(default_factory=Spend)
    clock: Intervals = field(default_factory=Intervals)

    def add(self, spend: Spend, until: float) -> None:
        self.spend += replace(spend, wall_s=0.0)
        if spend.wall_s > 0:
            self.clock.add(until - spend.wall_s, until)

    @property
    def total(self) -> Spend:
        return replace(self.spend, wall_s=self.clock.length)


class SpendLedger:
    """The spend of one experiment; safe to use from several threads, and its file from several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._inode = 0
        self._forget()
        self._unsaved: list[bytes] = []
        """Records that could not be written, because the disk is full for instance; they count, and are tried again."""

    def add(self, arm: str, spend: Spend, *, key: str | None = None, **notes: Any) -> None:
        """Count something. What has a `key` is counted once, however often it is added."""
        record = {"arm": arm, "at": time.time(), **_written(spend), **notes} | ({"key": key} if key else {})
        with self._lock:
            self._read()
            if key is not None and key in self._counted:
                return
            # A line end on both sides: whatever a killed writer left half-written cannot swallow this record.
            self._unsaved.append(b"\n" + json.dumps(record).encode() + b"\n")
            self._write()
            self._read()

    def total(self) -> Spend:
        """Everything, by all arms and processes so far."""
        with self._lock:
            self._read()
            return self._with_unsaved(None).total

    def of(self, arm: str) -> Spend:
        """What one arm has spent so far."""
        with self._lock:
            self._read()
            return self._with_unsaved(arm).total

    def arms(self) -> list[str]:
        """Every arm that has spent something."""
        with self._lock:
            self._read()
            return [arm for arm in self._accounts if arm != _EXPERIMENT]

    @contextmanager
    def running(self) -> Generator[None]:
        """Count the time of the block as time that the experiment ran, whatever its arms count themselves."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(_EXPERIMENT, Spend(wall_s=time.perf_counter() - began), what="experiment")

    def close(self) -> None:
        """Let go of the file; a later call opens it again."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __reduce__(self) -> tuple[type[SpendLedger], tuple[Path]]:
        return type(self), (self.path,)  # in another process it opens the file anew

    def _write(self) -> None:
        """Append what is not in the file yet, one record per write."""
        try:
            while self._unsaved:
                line = self._unsaved[0]
                if os.write(self._open(), line) < len(line) - 1:  # the next record brings a line end of its own
                    raise OSError("only a part could be written")
                self._unsaved.pop(0)
        except OSError as error:
            if len(self._unsaved) == 1:  # said once, not for every step
                get_logger(__name__).warning(
                    "%s: spend is kept in memory until it can be written: %s", self.path, error
                )

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = self._opened()
            if (inode := os.fstat(self._descriptor).st_ino) != self._inode:  # the folder was removed and made anew
                self._inode = inode
                self._forget()
        return self._descriptor

    def _opened(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError:
            return os.open(self.path, os.O_RDONLY)  # a record that may only be looked at

    def _forget(self) -> None:
        """Know nothing yet, as before the first line was read."""
        self._offset = 0
        self._accounts: dict[str, _Account] = {}
        self._all = _Account()
        self._counted: set[str] = set()

    def _read(self) -> None:
        """Take in the complete lines that are new."""
        if self._descriptor is None and not self.path.exists():
            self._forget()
            return
        try:
            size = os.fstat(self._open()).st_size
            if size < self._offset:  # the file is another one, or someone emptied it
                self._forget()
            if size == self._offset:
                return
            os.lseek(self._open(), self._offset, os.SEEK_SET)  # no matter to writes, which go to the end
            data = os.read(self._open(), size - self._offset)
        except OSError as error:
            get_logger(__name__).warning("%s: spend cannot be read at the moment: %s", self.path, error)
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.split(b"\n"):
            if line:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            record: dict[str, Any] = json.loads(line)
            arm, at, spend = str(record["arm"]), float(record["at"]), _read_spend(record)
        except (ValueError, TypeError, KeyError, AttributeError):  # half a record of a killed process, or damage
            return
        key = record.get("key")
        if key is not None and key in self._counted:  # two processes counted it at the same moment
            return
        if key is not None:
            self._counted.add(key)
        self._accounts.setdefault(arm, _Account()).add(spend, at)
        self._all.add(spend, at)

    def _with_unsaved(self, arm: str | None) -> _Account:
        account = self._all if arm is None else self._accounts.get(arm, _Account())
        mine = [record for line in self._unsaved if arm in (None, (record := json.loads(line))["arm"])]
        if not mine:
            return account
        clock = Intervals([*account.clock.starts], [*account.clock.ends], account.clock.length)
        account = _Account(account.spend, clock)
        for record in mine:
            account.add(_read_spend(record), record["at"])
        return account


_OPENED: dict[Path, SpendLedger] = {}
_MOST_OPENED = 16
_OPENING = threading.Lock()


def open_ledger(experiment_dir: Path) -> SpendLedger:
    """The ledger of an experiment, from its folder; what earlier attempts to run it spent is in it.

    The arms of a process share one, so that a thousandth arm need not read what the others wrote.
    """
    path = (experiment_dir / SPEND_FILE).resolve()
    with _OPENING:
        ledger = _OPENED.pop(path, None) or SpendLedger(path)
        _OPENED[path] = ledger  # the last one again: the first is dropped when there are many
        if len(_OPENED) > _MOST_OPENED:
            _OPENED.pop(next(iter(_OPENED)))
    return ledger


def _written(spend: Spend) -> dict[str, Any]:
    """Only what is not nothing, because there is a record for every step."""
    fields = {"tokens_trained": spend.tokens_trained, "tokens_sampled": spend.tokens_sampled, "usd": spend.usd}
    fields |= {"wall_s": spend.wall_s, "gpu_s": spend.gpu_s, "unpriced": spend.unpriced}
    return {name: value for name, value in fields.items() if value}


def _read_spend(record: dict[str, Any]) -> Spend:
    return Spend(
        int(record.get("tokens_trained", 0)),
        int(record.get("tokens_sampled", 0)),
        float(record.get("usd", 0.0)),
        float(record.get("wall_s", 0.0)),
        float(record.get("gpu_s", 0.0)),
        bool(record.get("unpriced", False)),
    )
