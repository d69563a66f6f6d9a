"""One process for several arms on one GPU: they share the base model, and the engine joins their passes.

Each arm has a thread of the process, and its own control, time limit, record and result. An arm that fails through no
fault of its config, and every arm of a process that was lost, goes on alone from its last checkpoint: in a process of
its own, one arm after another, once nothing runs in the shared one.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from ...errors import EvsysError
from ...log import get_logger
from ...protocols import RunResult
from ...training.callback import RunControl
from ..arms.results import portable
from ..launcher import ArmJob, Launch, WorkerLost, execute, kill_after_s, refuse, timeout_reason
from .worker import LOOK_UP_S, WorkerProcess

_DEVICE_LOST = 70
"""Exit code of a process whose GPU does not answer any more."""


class SharedProcess:
    """The parent's side of one GPU: arms in a shared process, or one by one once that has failed."""

    def __init__(self, briefing: bytes, environment: dict[str, str], limit_s: float | None) -> None:
        self._briefing, self._environment, self._limit_s = briefing, environment, limit_s
        self._worker: _Worker | None = None
        self._changed = threading.Condition()
        self._running = 0
        self._is_shared = True
        self._alone = threading.Lock()

    def run(self, job: ArmJob, alone: Callable[[ArmJob], RunResult]) -> RunResult:
        """Execute an arm with the others, or with `alone` after something has gone wrong."""
        with self._changed:
            if self._is_shared and (self._worker is None or not self._worker.is_alive):
                self._worker = _Worker.begin(self._briefing, self._environment)
            worker = self._worker if self._is_shared else None
            self._running += worker is not None
        if worker is not None:
            return self._run_shared(worker, job)
        with self._alone:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
                if self._worker is not None:
                    self._worker.close()  # its memory is needed
                    self._worker = None
            return alone(job)

    def _run_shared(self, worker: _Worker, job: ArmJob) -> RunResult:
        try:
            result = worker.execute(job, self._limit_s)
            if result.status != "failed" or not result.notes.retryable:
                return result
            error = WorkerLost(f"it failed beside other arms on one GPU: {result.error}", retries=1)
        except WorkerLost as lost:
            error = lost
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()
        if self._is_shared:
            self._is_shared = False
            get_logger(__name__).warning(
                "arms on this GPU no longer share a process and go on one by one from their last checkpoints: %s", error
            )
        raise error

    def stop(self, arm: str, reason: str) -> None:
        if self._worker is not None:
            self._worker.stop_arm(arm, reason)

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def dismiss(self) -> None:
        if self._worker is not None:
            self._worker.dismiss()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


class _Worker(WorkerProcess):
    """A process that executes several arms at a time."""

    @classmethod
    def begin(cls, briefing: bytes, environment: dict[str, str]) -> _Worker:
        """Start a process and a thread that hands out what it reports."""
        worker = cls.start(briefing, environment)
        assert isinstance(worker, _Worker)
        worker._futures = {}
        threading.Thread(target=worker._listen, daemon=True).start()
        return worker

    _futures: dict[str, Future[RunResult]]

    def execute(self, job: ArmJob, limit_s: float | None) -> RunResult:
        """Have an arm executed; if it does not stop in its time, the process is ended."""
        future: Future[RunResult] = Future()
        name = job.arm.name
        self._futures[name] = future
        self._is_busy = True
        try:
            self._send(pickle.dumps(("run", replace(job, run_dir=job.run_dir.absolute()))))
            ends_at = None if limit_s is None else time.monotonic() + kill_after_s(limit_s)
            while True:
                with suppress(TimeoutError):
                    return future.result(LOOK_UP_S)
                if ends_at is not None and time.monotonic() > ends_at:
                    del self._futures[name]  # the others are lost by accident, and this one is not
                    self.kill()
                    raise WorkerLost(f"{timeout_reason(limit_s or 0.0)} and did not stop.", final=True)
        finally:
            self._futures.pop(name, None)
            self._is_busy = bool(self._futures)

    def stop_arm(self, arm: str, reason: str) -> None:
        with suppress(WorkerLost):
            self._send(pickle.dumps(("stop", (arm, reason))))

    def _listen(self) -> None:
        try:
            while True:
                while not self._connection.poll(LOOK_UP_S):
                    if not self.is_alive and not self._connection.poll():
                        raise EOFError
                arm, result = self._connection.recv()
                if (future := self._futures.get(arm)) is not None:
                    future.set_result(result)
        except (EOFError, OSError, TypeError, pickle.UnpicklingError):  # a closed connection has no descriptor
            lost = self._lost(None, "")
            for future in list(self._futures.values()):
                future.set_exception(WorkerLost(str(lost), retries=1))


def share(connection: Connection, launch: Launch, problem: EvsysError | None) -> NoReturn:
    """The worker's side: a thread for each arm, until the parent is gone."""
    controls: dict[str, RunControl] = {}
    sending = threading.Lock()

    def run(job: ArmJob, control: RunControl) -> None:
        result = portable(execute(job, launch, control)) if problem is None else refuse(job, problem)
        if result.status == "failed" and _device_is_lost():
            os._exit(_DEVICE_LOST)  # no arm of this process can go on
        with sending, suppress(OSError):
            connection.send((job.arm.name, result))

    while True:
        try:
            what, value = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # nobody is left who would want the results
        if what == "run":
            controls[value.arm.name] = control = RunControl()
            threading.Thread(target=run, args=(value, control), name=value.arm.name, daemon=True).start()
        elif (stopped := controls.get(value[0])) is not None:
            stopped.stop(value[1], interrupted=True)


def _device_is_lost() -> bool:
    """Whether a CUDA error has ended all computing in this process."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
