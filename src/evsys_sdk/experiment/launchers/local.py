"""Arms on this machine: in this process, in threads, or in processes of their own.

Arms that only wait for a remote backend share this process as threads. Arms that compute get a process each, which is
kept for the next arm, and on a machine with GPUs a GPU each. A process that dies takes one arm with it and no other.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config.base import Strict
from ...log import get_logger
from ...protocols import RunResult
from ...registry import get_backend
from ...training.callback import RunControl
from ..launcher import ArmJob, Launch, execute
from ..machine import cpu_count, visible_gpus
from ..project_code import ProjectCode
from .worker import WorkerProcess, briefing_for

type Where = Literal["auto", "threads", "processes"]
_REMOTE_ARMS = 8
"""How many arms of a remote backend run at the same time unless the config says; they only wait."""


class LocalLauncherConfig(Strict):
    """Params of the `local` launcher."""

    arms_in: Where = "auto"
    """`threads` of this process or `processes`; by default threads for remote backends, processes for the others."""
    cpus_per_arm: int = Field(default=1, ge=1)
    """Cores an arm may use; limits how many run at the same time where the config does not."""
    gpus_per_arm: int = Field(default=1, ge=0)
    """GPUs an arm gets to see, on a machine that has any."""


class LocalLauncher:
    """Executes arms on this machine."""

    name: ClassVar[str] = "local"
    Config: ClassVar[type[LocalLauncherConfig]] = LocalLauncherConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._executors: list[_Executor] = []
        self._free: list[_Executor] = []
        self._running: dict[str, _Executor] = {}
        self._lock = threading.RLock()  # a signal handler may stop an arm while this thread holds it
        self._threads: ThreadPoolExecutor | None = None

    def open(self, launch: Launch, n_arms: int) -> int:
        remote = _is_remote(launch)
        gpus = [] if remote or self.cfg.gpus_per_arm == 0 else visible_gpus()
        slots = min(launch.max_concurrent or self._room(remote, gpus), max(n_arms, 1))
        if slots == 1 and self.cfg.arms_in == "auto":
            self._executors = [_InThisThread(launch)]
        elif self._uses_threads(remote):
            self._executors = [_InThread(launch) for _ in range(slots)]
        else:
            briefing = briefing_for(launch)
            shares = [self._environment(slot, slots, gpus) for slot in range(slots)]
            self._executors = [_InProcess(launch, briefing, share) for share in shares]
        self._free = list(reversed(self._executors))
        if not isinstance(self._executors[0], _InThisThread):
            self._threads = ThreadPoolExecutor(slots, thread_name_prefix="evsys-arm")
        return slots

    def start(self, job: ArmJob) -> Future[RunResult]:
        with self._lock:
            executor = self._free.pop()
            self._running[job.arm.name] = executor
        if self._threads is not None:
            return self._threads.submit(self._execute, executor, job)
        done: Future[RunResult] = Future()
        try:
            done.set_result(self._execute(executor, job))
        except Exception as error:
            done.set_exception(error)
        return done

    def stop(self, arm: str, reason: str) -> None:
        with self._lock:
            executor = self._running.get(arm)
        if executor is not None:
            executor.stop(reason)

    def kill(self, arm: str) -> None:
        with self._lock:
            executor = self._running.get(arm)
        if executor is not None:
            executor.kill()

    def close(self) -> None:
        for executor in self._executors:
            executor.dismiss()
        for executor in self._executors:
            executor.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._executors, self._free, self._threads = [], [], None

    def _execute(self, executor: _Executor, job: ArmJob) -> RunResult:
        try:
            return executor.run(job)
        finally:
            with self._lock:
                del self._running[job.arm.name]
                self._free.append(executor)

    def _uses_threads(self, remote: bool) -> bool:
        """Also where a process could not import what the script itself has registered."""
        if self.cfg.arms_in != "auto":
            return self.cfg.arms_in == "threads"
        unreachable = ProjectCode.of_this_process().unreachable
        if unreachable and not remote:
            get_logger(__name__).warning(
                "the arms share this process, because another one cannot import extensions registered in %s; "
                "move them to a module of their own to use all cores",
                ", ".join(unreachable),
            )
        return remote or bool(unreachable) or os.name == "nt"  # where a worker cannot be given a connection

    def _room(self, remote: bool, gpus: list[str]) -> int:
        if remote:
            return _REMOTE_ARMS
        by_cpu = max(cpu_count() // self.cfg.cpus_per_arm, 1)
        return min(by_cpu, max(len(gpus) // self.cfg.gpus_per_arm, 1)) if gpus else by_cpu

    def _environment(self, slot: int, slots: int, gpus: list[str]) -> dict[str, str]:
        """What a process is told about its share of the machine."""
        threads = max(cpu_count() // slots, self.cfg.cpus_per_arm, 1)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        told = {name: str(threads) for name in names if name not in os.environ}
        if gpus:
            first = slot * self.cfg.gpus_per_arm
            own = [gpus[(first + index) % len(gpus)] for index in range(self.cfg.gpus_per_arm)]
            told["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        return told


class _Executor:
    """Executes one arm at a time."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._control = RunControl()

    def run(self, job: ArmJob) -> RunResult:
        self._control = RunControl()  # what stopped one arm must not stop the next
        return execute(job, self.launch, self._control)

    def stop(self, reason: str) -> None:
        self._control.stop(reason, interrupted=True)

    def kill(self) -> None:
        """A thread cannot be ended from outside."""

    def dismiss(self) -> None:
        """Begin to let go of it, so that all go at the same time."""

    def close(self) -> None:
        """Nothing is held."""


class _InThisThread(_Executor):
    """The arm has this thread for itself, so that a second Ctrl-C ends it at once."""


class _InThread(_Executor):
    """One of several arms in this process."""


class _InProcess(_Executor):
    """A process that is started when it is first needed, and again when it has died."""

    def __init__(self, launch: Launch, briefing: bytes, environment: dict[str, str]) -> None:
        super().__init__(launch)
        self._briefing, self._environment = briefing, environment
        self._worker: WorkerProcess | None = None

    def run(self, job: ArmJob) -> RunResult:
        if self._worker is None or not self._worker.is_alive:
            self._worker = WorkerProcess.start(self._briefing, self._environment)
        return self._worker.run(job)

    def stop(self, reason: str) -> None:
        if self._worker is not None:
            self._worker.stop(reason)

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def dismiss(self) -> None:
        if self._worker is not None:
            self._worker.dismiss()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def _is_remote(launch: Launch) -> bool:
    """Whether no arm computes here."""
    kinds = {run.backend.kind for run in launch.config.all_runs()}
    return all(getattr(get_backend(kind), "remote", False) for kind in kinds)
