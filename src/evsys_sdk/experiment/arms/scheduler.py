"""Run arms on a launcher, as many at a time as it has slots, and keep their results.

A failed arm does not affect the others. An arm whose process was lost, or whose error may be temporary, is resumed from
its last checkpoint up to `arm_retries` times. An arm that does not stop at its time limit is killed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from ...config import ExperimentConfig
from ...log import get_logger
from ...protocols import RunResult
from ...record.events import Journal, Kind
from ...record.evidence import hash_result, seal_run, seal_weights
from ...record.reader import ExperimentRecord
from ...training.callback import is_deadline_stop
from ..launcher import TIMEOUT, ArmJob, Launcher, WorkerLost, timeout_reason
from ..record_dir import ExperimentDir, read_result, write_result
from ..search.allocation import Allocation, AllocationDecision
from .arm import Arm
from .results import ArmResult

_GRACE_S = 30.0
"""Time after its limit at which the scheduler kills an arm that its launcher should have ended."""
_ABANDON_S = 10.0
"""Time after which a killed arm counts as lost."""
_JOURNALED = ("unscored", "stop_reason", "spend", "trained_on", "tokens")
"""Notes on an arm that go into the journal with its end."""
_RESPONSE_S = 0.5
"""Longest delay until a request to stop is noticed."""


@dataclass(slots=True)
class _Running:
    arm: Arm
    future: Future[RunResult]
    attempt: int
    began: float
    asked_to_stop: bool = False
    was_killed: bool = False
    is_elsewhere: bool = False
    """Whether it runs in another thread or process."""


@dataclass(slots=True)
class ArmScheduler:
    """Runs the arms that an allocation requests."""

    config: ExperimentConfig
    folder: ExperimentDir
    journal: Journal
    launcher: Launcher
    allocation: Allocation
    slots: int
    stop_reason: Callable[[], str | None] = lambda: None
    """A reason to stop all arms and start no more, or None."""
    hold_reason: Callable[[], str | None] = lambda: None
    """A reason to start no more arms while the running ones finish, or None."""
    limit: Callable[[], AbstractContextManager[None]] = nullcontext
    """A context manager around calls of the launcher."""
    results: dict[str, ArmResult] = field(default_factory=dict[str, ArmResult])
    _waiting: deque[tuple[Arm, int]] = field(default_factory=deque[tuple[Arm, int]])
    _running: list[_Running] = field(default_factory=list[_Running])
    _known: list[str] = field(default_factory=list[str])
    """Names of the arms that the allocation has requested so far, in its order."""
    _decided: AllocationDecision | None = None
    _notes: dict[Any, dict[str, Any]] = field(default_factory=dict[Any, dict[str, Any]])
    """Interim analysis -> its decision in the journal."""

    def __post_init__(self) -> None:
        # A resumed experiment repeats its decisions; those in the journal are not written again.
        if self.folder.resumed and (self.config.search is not None or self.config.planned_looks):
            record = ExperimentRecord(self.folder.path)
            self._notes = {note.get("look"): note for note in [*record.search_decisions, *record.looks]}

    def run(self) -> list[ArmResult]:
        """Run all arms that the allocation requests; return their results in its order."""
        self._request_arms()
        try:
            while self._waiting or self._running:
                self._start_waiting()
                # All results were on disk, or no more arms may start.
                if not self._running:
                    break
                self._wait()
        except BaseException as error:  # an error of the record, or a second Ctrl-C
            self._stop_all(f"the experiment ended with {type(error).__name__}")
            raise
        return self._in_order()

    def interrupt(self, reason: str) -> None:
        """Stop an arm that runs in this thread; for signal handlers. `run` stops the others."""
        for running in self._running:
            if not running.is_elsewhere:
                self.launcher.stop(running.arm.name, reason)

    @property
    def n_requested(self) -> int:
        """Number of arms that the allocation has requested so far."""
        return len(self._known)

    def _stop_all(self, reason: str) -> None:
        """Ask every running arm for a clean stop."""
        for running in self._running:
            running.asked_to_stop = True
            self.launcher.stop(running.arm.name, reason)

    def _in_order(self) -> list[ArmResult]:
        # In the order of the requests, so that decisions do not depend on which arm is faster.
        return [self.results[name] for name in self._known if name in self.results]

    def _request_arms(self) -> None:
        decision = self.allocation.decide(self._in_order())
        if decision is self._decided:
            return
        self._decided = decision
        for note in decision.notes:
            if self._notes.get(note.get("look")) != note:  # a retried arm may change a decision
                self.journal.append(Kind.LOOKED if "look" in note else Kind.SEARCH_DECISION, **note)
                self._notes[note.get("look")] = note
        for arm in decision.arms[len(self._known) :]:
            self._known.append(arm.name)
            self._waiting.append((arm, 1))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self.slots and not self.stop_reason():
            arm, attempt = self._waiting[0]
            recorded = self._on_disk(arm) if attempt == 1 and self.folder.resumed else None
            if recorded is None and self.hold_reason() and (self._running or self._has_score()):
                return
            self._waiting.popleft()
            if recorded is not None:
                self.journal.append(Kind.ARM_RECALLED, arm=arm.name, status=recorded.status)
                self._settle(arm, recorded)
                continue
            self._start(arm, attempt)

    def _has_score(self) -> bool:
        """Whether an arm was scored: without one nothing can be concluded, however late it is."""
        results = (read_result(self.folder.run_dir(name)) for name in self._known)
        return any(
            result is not None and result.status == "completed" and result.notes.unscored is None for result in results
        )

    def _start(self, arm: Arm, attempt: int) -> None:
        job = ArmJob(arm, self.folder.run_dir(arm.name), resume=self.folder.resumed or attempt > 1)
        self.journal.append(Kind.ARM_STARTED, arm=arm.name, arm_id=arm.id, seed=arm.seed, attempt=attempt)
        running = _Running(arm, Future(), attempt, time.monotonic())
        self._running.append(running)  # before the start, so that Ctrl-C reaches an arm in this thread
        try:
            with self.limit():
                started: Any = self.launcher.start(job)
            if not isinstance(started, Future):
                raise TypeError(f"the launcher returned {type(started).__name__} instead of a Future")
            running.future = started
        except Exception as error:
            running.future.set_exception(error)
        # After the start, which returns only at the end of an arm that runs in this thread.
        running.is_elsewhere = True

    def _wait(self) -> None:
        """Wait for the end of an arm or for a moment; stop and kill arms where needed."""
        done, _ = wait([arm.future for arm in self._running], timeout=_RESPONSE_S, return_when=FIRST_COMPLETED)
        reason = self.stop_reason()
        if reason is not None and not all(arm.asked_to_stop for arm in self._running):
            self._stop_all(reason)
        self._kill_overdue()
        for running in [arm for arm in self._running if arm.future in done]:
            self._running.remove(running)
            self._end(running)

    def _kill_overdue(self) -> None:
        limit = overdue_s(self.config)
        for running in [arm for arm in self._running if limit is not None and not arm.future.done()]:
            late = time.monotonic() - running.began - (limit or 0.0)
            if late > 0 and not running.was_killed:
                running.was_killed = True
                with self.limit():
                    self.launcher.kill(running.arm.name)
            elif late > _ABANDON_S:  # the launcher could not kill it; do not wait forever
                running.future = Future()
                running.future.set_exception(WorkerLost(f"{timeout_reason(limit or 0.0)} and could not be ended"))

    def _end(self, running: _Running) -> None:
        """Retry an arm that has ended, or keep its result."""
        arm, retries, loss = running.arm, self.config.arm_retries, None
        try:
            result = recorded = running.future.result()
        except Exception as error:  # WorkerLost, or an error of a user's launcher
            recorded = self._on_disk(arm)  # the arm may have ended before its worker was lost
            loss = error if recorded is None else None
            result = recorded or self._failure(arm, error)
            retries = max(retries, getattr(error, "retries", 0))
        result = _fail_by_time(result)
        lost = loss is not None and not running.was_killed and not getattr(loss, "final", False)
        may_retry = lost or bool(result.notes.retryable)
        if result.status == "failed" and may_retry and running.attempt <= retries:
            self.journal.append(Kind.ARM_RETRIED, arm=arm.name, attempt=running.attempt, reason=result.error)
            get_logger(__name__).warning("run '%s' is resumed: %s", arm.name, result.error)
            self._waiting.append((arm, running.attempt + 1))
            return
        if result is not recorded:  # the worker could not write it, or the time limit has changed it
            write_result(self.folder.run_dir(arm.name), result, hparams=arm.run.model_dump(mode="json"))
        # First in the journal, because `_settle` may add the decisions that follow.
        self._journal_end(arm, result)
        self._settle(arm, result)

    def _journal_end(self, arm: Arm, result: RunResult) -> None:
        notes, run_dir = result.notes.to_dict(), self.folder.run_dir(arm.name)
        self.journal.append(
            Kind.ARM_ENDED,
            arm=arm.name,
            arm_id=arm.id,
            status=result.status,
            error=result.error,
            metrics=result.metrics,
            seed=arm.seed,
            result=hash_result(run_dir),
            sealed=seal_run(run_dir),
            weights=seal_weights(run_dir),
            **{key: notes[key] for key in _JOURNALED if key in notes},
        )

    def _settle(self, arm: Arm, result: RunResult) -> None:
        self.results[arm.name] = ArmResult(arm, result)
        self._request_arms()

    def _failure(self, arm: Arm, error: Exception) -> RunResult:
        """The result of a lost arm: the failure that it wrote, if any, with the reason of the loss."""
        reason = str(error) if isinstance(error, WorkerLost) else f"{type(error).__name__}: {error}"
        written = read_result(self.folder.run_dir(arm.name))  # of this attempt: the start removed an older one
        if written is not None and written.status == "failed":
            return replace(written, error=f"{written.error} ({reason})")
        return RunResult(arm.name, "failed", error=reason)

    def _on_disk(self, arm: Arm) -> RunResult | None:
        """The result in the folder of an arm that was trained to the end, or None."""
        result = read_result(self.folder.run_dir(arm.name))
        if result is None or result.notes.unscored is not None or is_deadline_stop(result.notes.stop_reason):
            return None
        return result if result.status == "completed" else None


def overdue_s(config: ExperimentConfig) -> float | None:
    """Seconds after its start at which the scheduler kills an arm that its launcher has not ended."""
    return None if config.arm_timeout_s is None else config.arm_timeout_s + _GRACE_S


def _fail_by_time(result: RunResult) -> RunResult:
    """Turn an arm that stopped at its time limit into a failed one."""
    if result.status == "cancelled" and (result.notes.stop_reason or "").startswith(TIMEOUT):
        remedy = "It has a checkpoint: raise arm_timeout_s and continue with --resume."
        return replace(result, status="failed", error=f"{result.error}. {remedy}")
    return result
