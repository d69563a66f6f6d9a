"""What an experiment has spent, in a file that its arms share.

The format is that of `record/ledger.py`. This is the writing side: it keeps its place in the file and reads only what
is new.

It is no `JsonlFile`, although it is appended to as well: that one has one writer, or a lock that every line waits for,
cuts off what a killed writer left half-written, and fails when the disk is full. Here the arms of many processes write
at every step without waiting for each other. So each record brings its own line ends, in one write to the end of the
file; nothing is ever cut off, because it may be what another process is writing; and what cannot be written is counted
in memory until it can: a run does not end because its bill could not be kept.

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
"""Scorings differ in length from arm to arm."""


class SpendLedger:
    """The spend of one experiment; safe to use from several threads, and its file from several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._forget()
        self._unsaved: list[bytes] = []
        """Records that could not be written, because the disk is full for instance; they count, and are tried again."""

    def add(self, arm: str, spend: Spend, *, key: str | None = None, **notes: Any) -> None:
        """Count something. What has a `key` is counted once, however often it is added."""
        line = spend_line(arm, time.time(), spend, key=key, **notes)
        with self._lock:
            self._read()
            # Asked after reading: another process may have counted it since.
            if key is not None and key in self._tally.keys:
                return
            self._unsaved.append(line)
            self._write()
            self._read()  # the sum is of what the file holds, this record by now among it, and is kept nowhere else

    def total(self) -> Spend:
        """Everything, by all arms and processes so far."""
        with self._lock:
            return self._count().total()

    def of(self, arm: str) -> Spend:
        """What one arm has spent so far."""
        with self._lock:
            return self._count().of(arm)

    def reserve_s(self, timed_s: float = 0.0) -> float:
        """Time to keep for the end of a run: what one took so far, or the forecast of it, or `timed_s` if more."""
        with self._lock:
            tally = self._count()
        known = max(tally.tail_s or tally.forecast_s, timed_s)
        return known * _RESERVE_FACTOR + _RESERVE_S if known else 0.0

    def seconds_left(self, wall_s: float, unwritten_s: float = 0.0) -> float:
        """Until a limit of time or the deadline: the sum lacks what no arm counts, such as the start of processes."""
        with self._lock:
            tally = self._count()
        left = wall_s - tally.total().wall_s - unwritten_s
        return left if tally.deadline is None else min(left, tally.deadline - time.time())

    @contextmanager
    def running(self, deadline: float | None = None) -> Generator[None]:
        """Count the time of the block as time that the experiment ran, and note its deadline for all arms."""
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
        return type(self), (self.path,)  # in another process it opens the file anew

    def _write(self) -> None:
        """Append what is not in the file yet, one record per write."""
        try:
            while self._unsaved:
                line = self._unsaved[0]
                if os.write(self._open(), line) < len(line) - 1:  # the next record brings its own line end
                    raise OSError("only a part could be written")
                self._unsaved.pop(0)
        except OSError as error:
            if len(self._unsaved) == 1:  # said once, not for every step
                get_logger(__name__).warning(
                    "%s: spend is kept in memory until it can be written: %s", self.path, error
                )

    def _open(self) -> int:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(self.path, flags, 0o666)
        return self._descriptor

    def _forget(self) -> None:
        """Know nothing yet, as before the first line was read."""
        self._offset = 0
        self._tally = Tally()

    def _read(self) -> None:
        """Take in the complete lines that are new."""
        if self._descriptor is None and not self.path.exists():
            self._forget()
            return
        try:
            size = os.fstat(self._open()).st_size
            # Most often nothing is new, and a budget is asked about at every step.
            if size == self._offset:
                return
            os.lseek(self._open(), self._offset, os.SEEK_SET)  # no matter to writes, which go to the end
            data = os.read(self._open(), size - self._offset)
        except OSError as error:
            get_logger(__name__).warning("%s: spend cannot be read at the moment: %s", self.path, error)
            return
        # Behind the last line end may be what another process is writing at this moment.
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.split(b"\n"):
            if line:
                self._tally.take(line)

    def _count(self) -> Tally:
        """What is in the file, and what could not be written yet."""
        self._read()
        if not self._unsaved:
            return self._tally
        # A copy: what is written later is read from the file, and would count twice here.
        tally = self._tally.copy()
        for line in self._unsaved:
            tally.take(line)
        return tally


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
            # Not closed: an arm may be writing through it, and closes it when it ends.
            _OPENED.pop(next(iter(_OPENED)))
    return ledger


# Limits on what an experiment and each of its arms may spend, and which of them is reached.
#
# if reason := find_exhausted(config.budget, ledger.total()): ... # before an arm starts

LIMITED = ("usd", "tokens", "wall_s", "gpu_s")
"""What a limit can be set on."""
_AMOUNTS = tuple(name for name in LIMITED if name != "wall_s")
"""Limits that break a run off. A limit of time ends it early enough to score it."""
STOP_PREFIX = "budget: "
"""How the reason of a stop by budget begins."""


def find_exhausted(limits: Limits | None, spend: Spend) -> str | None:
    """Which limit but time is reached, e.g. `tokens 10,240 of 10,000`; None while there is something left."""
    for name in _AMOUNTS if limits else ():
        limit, spent = getattr(limits, name), getattr(spend, name)
        if limit is not None and spent >= limit:
            return f"{name} {amount(name, spent)} of {amount(name, limit)}"
    return None


def find_deadline(limits: Limits | None, ledger: SpendLedger) -> str | None:
    """Why no further arm starts: the time that is left is needed to score one, or none is left."""
    if limits is None or limits.wall_s is None:
        return None
    left = ledger.seconds_left(limits.wall_s)
    return describe_deadline(limits.wall_s, left) if left <= ledger.reserve_s() else None


def describe_deadline(limit: float, left: float) -> str:
    """The reason of a stop by a limit of time."""
    return f"{DEADLINE}, {amount('wall_s', max(left, 0.0))} s of wall_s {amount('wall_s', limit)} left to score"


def limits_anything(limits: Limits | None) -> bool:
    """Whether there is a limit at all."""
    return any(getattr(limits, name, None) is not None for name in LIMITED)


def amount(name: str, value: float) -> str:
    """A number of dollars, tokens or seconds as people read it."""
    return f"{value:,.0f}" if name == "tokens" else f"{value:,.4g}" if value < 1000 else f"{value:,.1f}"


def is_budget_stop(reason: str | None) -> bool:
    """Whether a run was stopped by its budget."""
    return (reason or "").startswith(STOP_PREFIX)
