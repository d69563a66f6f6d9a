"""Brings arms to a launcher, as many at a time as it has room for, and sees to what becomes of them.

An arm that fails harms no other. One whose process was lost, or that failed through no fault of its config, is resumed
again from its last checkpoint as often as the config allows; one that does not stop when its time is over is killed.
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
"""A launcher ends an arm whose time is over; how long after that this is done here, its start-up included."""
_ABANDON_S = 10.0
"""How long an arm that was killed is waited for, before it counts as lost."""
_TOLD = ("unscored", "stop_reason", "spend", "trained_on", "tokens")
"""Notes on an arm that go into the journal with its end."""
_RESPONSE_S = 0.5
"""How soon a request to stop is noticed."""


@dataclass(slots=True)
class _Running:
    arm: Arm
    future: Future[RunResult]
    attempt: int
    began: float
    asked_to_stop: bool = False
    was_killed: bool = False
    is_elsewhere: bool = False
    """Whether it is in another thread or process than this one."""


@dataclass(slots=True)
class ArmScheduler:
    """Runs the arms that an allocation asks for."""

    config: ExperimentConfig
    folder: ExperimentDir
    journal: Journal
    launcher: Launcher
    allocation: Allocation
    slots: int
    stop_reason: Callable[[], str | None] = lambda: None
    """Why nothing more is to be started, and everything running is to stop; None as long as all is well."""
    hold_reason: Callable[[], str | None] = lambda: None
    """Why nothing more is to be started, while what is running ends by itself."""
    limit: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered around calls of the launcher."""
    results: dict[str, ArmResult] = field(default_factory=dict[str, ArmResult])
    _waiting: deque[tuple[Arm, int]] = field(default_factory=deque[tuple[Arm, int]])
    _running: list[_Running] = field(default_factory=list[_Running])
    _known: list[str] = field(default_factory=list[str])
    """Names of the arms that the allocation has asked for so far, in its order."""
    _decided: AllocationDecision | None = None
    _notes: dict[Any, dict[str, Any]] = field(default_factory=dict[Any, dict[str, Any]])
    """The decisions that the journal has, by which one it was."""

    def __post_init__(self) -> None:
        # The same decisions are taken again, and need not be written again.
        if self.folder.resumed and (self.config.search is not None or self.config.planned_looks):
            record = ExperimentRecord(self.folder.path)
            self._notes = {note.get("look"): note for note in [*record.search_decisions, *record.looks]}

    def run(self) -> list[ArmResult]:
        """All arms the allocation asked for, in its order, each as it ended; aborted when asked to stop."""
        self._ask_allocation()
        try:
            while self._waiting or self._running:
                self._start_waiting()
                # Everything was on disk already, or nothing may start any more.
                if not self._running:
                    break
                self._await_one()
        except BaseException as error:  # of the record, or a second Ctrl-C: no one waits for the others any more
            self._stop_all(f"the experiment broke off: {type(error).__name__}")
            raise
        return self._in_order()

    def interrupt(self, reason: str) -> None:
        """Stop an arm that has this very thread for itself; for signal handlers. The others are stopped by `run`."""
        for running in self._running:
            if not running.is_elsewhere:
                self.launcher.stop(running.arm.name, reason)

    @property
    def n_asked_for(self) -> int:
        """Arms that the allocation has asked for so far."""
        return len(self._known)

    def _stop_all(self, reason: str) -> None:
        """Ask every running arm for a clean stop."""
        for running in self._running:
            running.asked_to_stop = True
            self.launcher.stop(running.arm.name, reason)

    def _in_order(self) -> list[ArmResult]:
        # As they were asked for, not as they came: which arm was faster must not change a decision.
        return [self.results[name] for name in self._known if name in self.results]

    def _ask_allocation(self) -> None:
        decision = self.allocation.decide(self._in_order())
        if decision is self._decided:
            return
        self._decided = decision
        for note in decision.notes:
            if self._notes.get(note.get("look")) != note:  # a failed arm that was tried again may change it
                self.journal.append(Kind.LOOKED if "look" in note else Kind.SEARCH_DECISION, **note)
                self._notes[note.get("look")] = note
        for arm in decision.arms[len(self._known) :]:
            self._known.append(arm.name)
            self._waiting.append((arm, 1))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self.slots and not (self.stop_reason() or self.hold_reason()):
            arm, attempt = self._waiting.popleft()
            recorded = self._on_disk(arm) if attempt == 1 and self.folder.resumed else None
            if recorded is not None:
                self.journal.append(Kind.ARM_RECALLED, arm=arm.name, status=recorded.status)
                self._settle(arm, recorded)
                continue
            self._start(arm, attempt)

    def _start(self, arm: Arm, attempt: int) -> None:
        job = ArmJob(arm, self.folder.run_dir(arm.name), resume=self.folder.resumed or attempt > 1)
        self.journal.append(Kind.ARM_STARTED, arm=arm.name, arm_id=arm.id, seed=arm.seed, attempt=attempt)
        running = _Running(arm, Future(), attempt, time.monotonic())
        self._running.append(running)  # before it starts: an arm in this very thread must be within reach of Ctrl-C
        try:
            with self.limit():
                started: Any = self.launcher.start(job)
            if not isinstance(started, Future):
                raise TypeError(f"the launcher returned {type(started).__name__} instead of a Future")
            running.future = started
        except Exception as error:
            running.future.set_exception(error)
        # Only now: a launcher that runs the arm in this thread comes back when it is over, and signals must reach it.
        running.is_elsewhere = True

    def _await_one(self) -> None:
        """Wait until an arm ends, looking up now and then to see whether anything must stop."""
        done, _ = wait([one.future for one in self._running], timeout=_RESPONSE_S, return_when=FIRST_COMPLETED)
        reason = self.stop_reason()
        if reason is not None and not all(one.asked_to_stop for one in self._running):
            self._stop_all(reason)
        self._kill_overdue()
        for running in [one for one in self._running if one.future in done]:
            self._running.remove(running)
            self._take(running)

    def _kill_overdue(self) -> None:
        limit = overdue_s(self.config)
        for running in [one for one in self._running if limit is not None and not one.future.done()]:
            late = time.monotonic() - running.began - (limit or 0.0)
            if late > 0 and not running.was_killed:
                running.was_killed = True
                with self.limit():
                    self.launcher.kill(running.arm.name)
            elif late > _ABANDON_S:  # a launcher that cannot end its arms must not keep the experiment
                running.future = Future()
                running.future.set_exception(WorkerLost(f"{timeout_reason(limit or 0.0)} and could not be ended"))

    def _take(self, running: _Running) -> None:
        """Deal with an arm that has ended: try again, or keep what came of it."""
        arm, retries, loss = running.arm, self.config.arm_retries, None
        try:
            result = recorded = running.future.result()
        except Exception as error:  # a launcher raises WorkerLost; whatever else one does harms no other arm either
            recorded = self._on_disk(arm)  # it may have been lost on its way home
            loss = error if recorded is None else None
            result = recorded or self._failure(arm, error)
            retries = max(retries, getattr(error, "retries", 0))
        result = _fail_by_time(result)
        lost_by_accident = loss is not None and not running.was_killed and not getattr(loss, "final", False)
        may_retry = lost_by_accident or bool(result.notes.retryable)
        if result.status == "failed" and may_retry and running.attempt <= retries:
            self.journal.append(Kind.ARM_RETRIED, arm=arm.name, attempt=running.attempt, reason=result.error)
            get_logger(__name__).warning("run '%s' is resumed: %s", arm.name, result.error)
            self._waiting.append((arm, running.attempt + 1))
            return
        if result is not recorded:  # no one was left to write it down, or what was written is not how it is taken
            write_result(self.folder.run_dir(arm.name), result, hparams=arm.run.model_dump(mode="json"))
        # In the journal an end comes before the decisions that follow from it.
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
            **{key: notes[key] for key in _TOLD if key in notes},
        )

    def _settle(self, arm: Arm, result: RunResult) -> None:
        self.results[arm.name] = ArmResult(arm, result)
        self._ask_allocation()

    def _failure(self, arm: Arm, error: Exception) -> RunResult:
        """What to say of an arm that is lost: its own result, if it could still write one, or how it was lost."""
        said = str(error) if isinstance(error, WorkerLost) else f"{type(error).__name__}: {error}"
        written = read_result(self.folder.run_dir(arm.name))  # of this attempt: an older one was removed
        if written is not None and written.status == "failed":
            return replace(written, error=f"{written.error} ({said})")
        return RunResult(arm.name, "failed", error=said)

    def _on_disk(self, arm: Arm) -> RunResult | None:
        """The result in the folder of an arm, if it was trained to its end."""
        result = read_result(self.folder.run_dir(arm.name))
        if result is None or result.notes.unscored is not None or is_deadline_stop(result.notes.stop_reason):
            return None
        return result if result.status == "completed" else None


def overdue_s(config: ExperimentConfig) -> float | None:
    """How long after its start an arm is killed that its launcher should have ended."""
    return None if config.arm_timeout_s is None else config.arm_timeout_s + _GRACE_S


def _fail_by_time(result: RunResult) -> RunResult:
    """An arm whose time was over has failed, although it stopped as cleanly as one that was interrupted."""
    if result.status == "cancelled" and (result.notes.stop_reason or "").startswith(TIMEOUT):
        remedy = "It has a checkpoint: raise arm_timeout_s and continue with --resume."
        return replace(result, status="failed", error=f"{result.error}. {remedy}")
    return result
