"""Joint passes: rows of several runs on one base are computed in one pass if they are ready at about the same time.

No extra thread is needed: the first worker that waits becomes the leader. It waits briefly for the runs of the last
pass and computes all rows that fit together. If a joint pass runs out of memory, every worker computes its row alone
with the usual fallbacks. Any other error disables joining on this base.
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
"""Maximum wait for the runs of the last joint pass, as a share of that pass's duration."""
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.002, 0.2


class RowJoiner:
    """Joins the rows of all runs on a base."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._members: weakref.WeakSet[LocalTrainingState] = weakref.WeakSet()
        self._expected: weakref.WeakSet[LocalTrainingState] = weakref.WeakSet()
        """The runs of the last passes, which the leader waits for."""
        self._waiting: list[RowJob] = []
        self._is_led = False
        self._is_off = False
        self._patience_s = _LEAST_PATIENCE_S
        self.stacks: dict[Any, Stack] = {}
        """The stacked adapters of earlier joint passes, by the adapters' form and number."""
        self.joint_rows = 0
        """Number of rows computed in joint passes."""

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
        """Compute a row jointly with other runs; return False if the caller has to compute it alone.

        Raises the errors of the loss of this run.
        """
        state = job.state
        if self._is_off or self.members < 2 or (job.is_large and state.base.device.type != "cuda"):
            return False
        began = time.perf_counter()
        with self._changed:
            self._waiting.append(job)
            self._expected.add(state)
            self._changed.notify_all()
            self._changed.wait_for(lambda: job.has_ended or not (self._is_led or job.is_taken))
            # A large row is computed alone but with shared graphs, because graphs per run take too much memory.
            jobs = [] if job.has_ended else self._gather(job)
        if jobs:
            self._lead(jobs)
        state.clock.discount(time.perf_counter() - began - job.seconds)
        if job.error is not None:
            raise job.error
        return job.logprobs is not None

    def _gather(self, first: RowJob) -> list[RowJob]:
        """Wait for the expected runs, then take as many rows as fit together."""
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
            # As few passes as possible, of similar size. Do not wait for these runs until the last of the passes.
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
    """Whether two rows can share a pass, apart from their size."""
    return (job.slope_of is None) == (first.slope_of is None) and job.state.form == first.state.form


def _fits(job: RowJob, jobs: list[RowJob]) -> bool:
    """Whether a row fits into a pass with these rows."""
    together = [*jobs, job]
    most = min(member.state.fitting.tokens_at_once for member in together)
    return len(together) * joint_length(together) <= most


def joiner_of(base: Base) -> RowJoiner:
    """Return the joiner of a base; create it on the first call."""
    if base.joiner is None:
        base.joiner = RowJoiner()
    return base.joiner
