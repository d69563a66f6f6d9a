"""Rows that runs on one base want read at about the same time are read in one pass.

There is no thread for it: of the workers that wait, the first one leads. It waits for those that took part in the last
pass, though not for long, and reads all rows that fit together. A joint pass that runs out of memory is given up, and
every worker reads its row alone, with what it does then. Any other error ends joining on this base.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from ....log import get_logger
from .. import memory
from ..base.loading import Base
from .rows import RowJob, Stack, joint_length, read_together

if TYPE_CHECKING:
    from .passes import LocalTrainingState

_PATIENCE = 0.5
"""Of the time that the last joint pass took, how much is waited for those who took part in it."""
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.002, 0.2


class RowJoiner:
    """Where the workers of all runs on a base meet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._members: weakref.WeakSet[LocalTrainingState] = weakref.WeakSet()
        self._expected: weakref.WeakSet[LocalTrainingState] = weakref.WeakSet()
        """Those who took part in the last passes."""
        self._waiting: list[RowJob] = []
        self._is_led = False
        self._is_off = False
        self._patience_s = _LEAST_PATIENCE_S
        self.stacks: dict[Any, Stack] = {}
        """What joint passes have made of the adapters, by their form and number."""
        self.joint_rows = 0
        """Rows that were read together with others."""

    @property
    def members(self) -> int:
        """Runs on this base that may be joined."""
        return len(self._members)

    def enter(self, state: LocalTrainingState) -> None:
        if not self._members:
            self._is_off = False
        self._members.add(state)

    def leave(self, state: LocalTrainingState) -> None:
        with self._changed:
            self._members.discard(state)
            self._expected.discard(state)
            if self.members < 2:
                self.stacks.clear()
            self._changed.notify_all()

    def read(self, job: RowJob) -> bool:
        """Read a row with those of others; False where it has to be read alone. Raises what its own loss raises."""
        state = job.state
        if self._is_off or self.members < 2 or (job.is_large and state.base.device.type != "cuda"):
            return False
        began = time.perf_counter()
        with self._changed:
            self._waiting.append(job)
            self._expected.add(state)
            self._changed.notify_all()
            self._changed.wait_for(lambda: job.has_ended or not (self._is_led or job.is_taken))
            # A large row is read by itself, through the graphs that all runs share: those of each take too much memory.
            jobs = [] if job.has_ended else self._gather(job)
        if jobs:
            self._lead(jobs)
        state.clock.discount(time.perf_counter() - began - job.seconds)
        if job.error is not None:
            raise job.error
        return job.logprobs is not None

    def _gather(self, first: RowJob) -> list[RowJob]:
        """Wait for those who are expected, then take as many rows as fit together."""
        self._is_led = True
        ends = time.monotonic() + self._patience_s
        jobs = [first]
        if not first.is_large:
            while (late := set(self._expected) - {job.state for job in self._waiting}) and ends > time.monotonic():
                self._changed.wait(ends - time.monotonic())
            for state in late:
                self._expected.discard(state)
            alike = [job for job in self._waiting if _is_alike(job, first)]
            for job in alike:
                if job is not first and _fits(job, jobs):
                    jobs.append(job)
            # As few passes as possible, of about as many rows each. No one waits for these runs before the last pass.
            passes = -(-len(alike) // len(jobs))
            jobs = jobs[: -(-len(alike) // passes)]
            if passes > 1:
                self._expected.difference_update({job.state for job in jobs})
        self._waiting = [job for job in self._waiting if job not in jobs]
        for job in jobs:
            job.is_taken = True
        return jobs

    def _lead(self, jobs: list[RowJob]) -> None:
        try:
            if len(jobs) > 1 or jobs[0].is_large:
                self._read(jobs[0].state.base, jobs)
        finally:
            with self._changed:
                self._is_led = False
                for job in jobs:
                    job.has_ended = True
                self._changed.notify_all()

    def _read(self, base: Base, jobs: list[RowJob]) -> None:
        began = time.perf_counter()
        try:
            read_together(base, jobs, self.stacks)
        except Exception as error:
            self.stacks.clear()
            for job in jobs:
                job.logprobs = job.gradient = job.error = None
            if memory.is_out_of_memory(error):
                memory.forget_frames(error)
                self._expected.clear()
                return
            self._is_off = True
            get_logger(__name__).warning(
                "%d runs could not be computed in one pass (%s: %s); from now on each is computed alone",
                len(jobs),
                type(error).__name__,
                error,
            )
            return
        self.joint_rows += len(jobs)
        self._patience_s = min(max(_PATIENCE * (time.perf_counter() - began), _LEAST_PATIENCE_S), _MOST_PATIENCE_S)


def _is_alike(job: RowJob, first: RowJob) -> bool:
    """Whether a row can be read with another where both fit."""
    return (job.slope_of is None) == (first.slope_of is None) and job.state.form == first.state.form


def _fits(job: RowJob, jobs: list[RowJob]) -> bool:
    """Whether a row can be read with others like it."""
    together = [*jobs, job]
    most = min(one.state.fitting.tokens_at_once for one in together)
    return len(together) * joint_length(together) <= most


def joiner_of(base: Base) -> RowJoiner:
    """The one of a base."""
    if base.joiner is None:
        base.joiner = RowJoiner()
    return base.joiner
