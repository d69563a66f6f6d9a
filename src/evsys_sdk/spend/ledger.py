"""The spend of an experiment, in a file that its arms share.

The format is in `record/ledger.py`. This is the writing side: it keeps its offset in the file and reads only new lines.

It does not use `JsonlFile`, which needs one writer or a lock, truncates a partial last line, and fails when the disk is
full. Here many processes append at every step without a lock. So each record is one write with a line end on both
sides; nothing is truncated, because another process may be writing it; and records that cannot be written are counted
in memory until they can, so a full disk does not end a run.

    ledger = open_ledger(experiment_dir)
    ledger.add("sft__seed1", Spend(tokens_trained=2048, wall_s=0.4))
    ledger.total().tokens, ledger.of("sft__seed1").wall_s
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.experiment import Limits
from ..log import get_logger
from ..record.ledger import EXPERIMENT, SPEND_FILE, Spend, Tally, spend_line
from ..training.callback import DEADLINE

_RESERVE_FACTOR = 1.25
_RESERVE_S = 0.1
"""Scoring time varies between arms."""


class SpendLedger:
    """The spend of one experiment; thread-safe, and its file is shared by processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._reset()
        self._unsaved: list[bytes] = []
        """Records that could not be written, e.g. to a full disk; they count and are retried."""

    def add(self, arm: str, spend: Spend, *, key: str | None = None, **notes: Any) -> None:
        """Count spend. A record with a `key` is counted once, however often it is added."""
        line = spend_line(arm, time.time(), spend, key=key, **notes)
        with self._lock:
            self._read()
            # Checked after reading: another process may have counted it.
            if key is not None and key in self._tally.keys:
                return
            self._unsaved.append(line)
            self._write()
            self._read()  # totals come only from the file, which now has this record

    def total(self) -> Spend:
        """The spend of all arms and processes so far."""
        with self._lock:
            return self._count().total()

    def of(self, arm: str) -> Spend:
        """The spend of one arm so far."""
        with self._lock:
            return self._count().of(arm)

    def reserve_s(self, timed_s: float = 0.0) -> float:
        """Time to keep for the end of a run: the longest so far or the forecast, at least `timed_s`."""
        with self._lock:
            tally = self._count()
        tail_s = max(tally.tail_s or tally.forecast_s, timed_s)
        return tail_s * _RESERVE_FACTOR + _RESERVE_S if tail_s else 0.0

    def seconds_left(self, wall_s: float, unwritten_s: float = 0.0) -> float:
        """Time until a limit or the deadline, which covers uncounted time such as the start of processes."""
        with self._lock:
            tally = self._count()
        left_s = wall_s - tally.total().wall_s - unwritten_s
        return left_s if tally.deadline is None else min(left_s, tally.deadline - time.time())

    @contextmanager
    def running(self, deadline: float | None = None) -> Generator[None]:
        """Count the time of the block as run time of the experiment, and record its deadline for all arms."""
        began = time.perf_counter()
        self.add(EXPERIMENT, Spend(), what="start", deadline=deadline)
        try:
            yield
        finally:
            self.add(EXPERIMENT, Spend(wall_s=time.perf_counter() - began), what="experiment")

    def close(self) -> None:
        """Release the file; a later call opens it again."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __reduce__(self) -> tuple[type[SpendLedger], tuple[Path]]:
        return type(self), (self.path,)  # another process opens the file again

    def _write(self) -> None:
        """Append unsaved records, one per write."""
        try:
            while self._unsaved:
                line = self._unsaved[0]
                if os.write(self._open(), line) < len(line) - 1:  # the next record brings its own line end
                    raise OSError("partial write")
                self._unsaved.pop(0)
        except OSError as error:
            if len(self._unsaved) == 1:  # warn once, not at every step
                get_logger(__name__).warning(
                    "%s: spend is kept in memory until it can be written: %s", self.path, error
                )

    def _open(self) -> int:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(self.path, flags, 0o666)
        return self._descriptor

    def _reset(self) -> None:
        """Reset to the state before the first line is read."""
        self._offset = 0
        self._tally = Tally()

    def _read(self) -> None:
        """Read new complete lines."""
        if self._descriptor is None and not self.path.exists():
            self._reset()
            return
        try:
            size = os.fstat(self._open()).st_size
            # Usually nothing is new, and budgets are checked at every step.
            if size == self._offset:
                return
            os.lseek(self._open(), self._offset, os.SEEK_SET)  # writes always append
            data = os.read(self._open(), size - self._offset)
        except OSError as error:
            get_logger(__name__).warning("%s: spend cannot be read at the moment: %s", self.path, error)
            return
        # Another process may be writing after the last line end.
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.split(b"\n"):
            if line:
                self._tally.take(line)

    def _count(self) -> Tally:
        """The tally of the file and of unsaved records."""
        self._read()
        if not self._unsaved:
            return self._tally
        # A copy: saved records will be read from the file and would count twice.
        tally = self._tally.copy()
        for line in self._unsaved:
            tally.take(line)
        return tally


_OPENED: dict[Path, SpendLedger] = {}
_MOST_OPENED = 16
_OPENING = threading.Lock()


def open_ledger(experiment_dir: Path) -> SpendLedger:
    """The ledger of an experiment folder, including spend of earlier attempts.

    The arms of a process share it, so that each does not read the whole file again.
    """
    path = (experiment_dir / SPEND_FILE).resolve()
    with _OPENING:
        ledger = _OPENED.pop(path, None) or SpendLedger(path)
        _OPENED[path] = ledger  # re-inserted last: the least recently used is dropped
        if len(_OPENED) > _MOST_OPENED:
            # Not closed: an arm may still use it, and closes it when it ends.
            _OPENED.pop(next(iter(_OPENED)))
    return ledger


# Limits on the spend of an experiment and each of its arms.
#
# if reason := find_exhausted(config.budget, ledger.total()): ... # before an arm starts

LIMITED = ("usd", "tokens", "wall_s", "gpu_s")
"""Amounts that can be limited."""
_AMOUNTS = tuple(name for name in LIMITED if name != "wall_s")
"""Limits that abort a run. A time limit ends it early enough to score it."""
STOP_PREFIX = "budget: "
"""Prefix of the reason of a stop by budget."""


def find_exhausted(limits: Limits | None, spend: Spend) -> str | None:
    """The reached limit, except time, e.g. `tokens 10,240 of 10,000`; None if none is reached."""
    for name in _AMOUNTS if limits else ():
        limit, spent = getattr(limits, name), getattr(spend, name)
        if limit is not None and spent >= limit:
            return f"{name} {amount(name, spent)} of {amount(name, limit)}"
    return None


def find_deadline(limits: Limits | None, ledger: SpendLedger) -> str | None:
    """Why no further arm starts: the remaining time is needed for scoring, or is over."""
    if limits is None or limits.wall_s is None:
        return None
    left_s = ledger.seconds_left(limits.wall_s)
    return describe_deadline(limits.wall_s, left_s) if left_s <= ledger.reserve_s() else None


def describe_deadline(limit_s: float, left_s: float) -> str:
    """The reason of a stop by a time limit."""
    return f"{DEADLINE}, {amount('wall_s', max(left_s, 0.0))} s of wall_s {amount('wall_s', limit_s)} left to score"


def limits_anything(limits: Limits | None) -> bool:
    """Whether any limit is set."""
    return any(getattr(limits, name, None) is not None for name in LIMITED)


def amount(name: str, value: float) -> str:
    """Format dollars, tokens or seconds."""
    return f"{value:,.0f}" if name == "tokens" else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


def is_budget_stop(reason: str | None) -> bool:
    """Whether a run was stopped by its budget."""
    return (reason or "").startswith(STOP_PREFIX)
