"""Arms on this machine: in this process, in threads, or in processes of their own.

One arm at a time made of built-ins runs right here, and arms that only wait for a remote backend share this process as
threads. Arms that compute get a process each, which is kept for the next arm, and on a machine with GPUs a GPU each.
Arms of the backend `local` share a process for each GPU, and with it the base model.
Arms with user code, and arms with a time limit, always get a process: it can be ended, and if it dies it
takes one arm with it and no other.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config import ExperimentConfig
from ...config.base import Strict
from ...config.prices import backend_of
from ...errors import ConfigError, Problem
from ...log import get_logger
from ...protocols import RunResult
from ...registry import get_backend
from ...training.callback import RunControl
from ..arms.project_code import ProjectCode, find_registered_later, runs_own_code
from ..launcher import ArmJob, Launch, cpu_count, execute, visible_gpus
from .shared import SharedWorker
from .worker_process import ArmWorker, Mode, write_briefing

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
    arms_per_gpu: int | Literal["auto"] = Field(default=1)
    """Arms of the backend `local` that share a GPU and its base model; auto is as many as fit, at most 8. By default
    each arm has its own process: sharing is faster for small steps only."""


class LocalLauncher:
    """Executes arms on this machine."""

    name: ClassVar[str] = "local"
    Config: ClassVar[type[LocalLauncherConfig]] = LocalLauncherConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._executors: list[_Here | ArmWorker] = []
        self._free: list[_Here | ArmWorker] = []
        self._running: dict[str, _Here | ArmWorker] = {}
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def open(self, launch: Launch, n_arms: int) -> int:
        remote = _is_remote(launch)
        gpus = [] if remote or self.cfg.gpus_per_arm == 0 else visible_gpus()
        together = self._arms_together(launch, gpus)
        slots = min(launch.max_concurrent or self._room(remote, gpus, together), max(n_arms, 1))
        shared = together > 1 and slots > 1
        briefing = write_briefing(launch, "here") if shared else self._briefing(launch, slots, remote)
        if briefing is None:
            executors = [_Here(launch) for _ in range(slots)]
        elif shared:
            shares = [self._environment(slot, min(slots, len(gpus)), gpus) for slot in range(len(gpus))][:slots]
            together_briefing = write_briefing(launch, "threads")
            executors = [
                SharedWorker(launch, together_briefing, ArmWorker(launch, briefing, one), one) for one in shares
            ]
            executors = [executors[slot % len(executors)] for slot in range(slots)]
        else:
            shares = [self._environment(slot, slots, gpus) for slot in range(slots)]
            executors = [ArmWorker(launch, briefing, share) for share in shares]
        self._executors = list(executors)
        self._free = self._executors[::-1]  # taken from the end, so that the first slot comes first
        if briefing is not None or slots > 1:
            # For processes as well: each of them is waited for in a thread.
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
            # A second Ctrl-C is no Exception: it is to end this process, not to become the result of an arm.
            done.set_exception(error)
        return done

    def stop(self, arm: str, reason: str) -> None:
        if (executor := self._running.get(arm)) is not None:
            executor.stop(arm, reason)

    def kill(self, arm: str) -> None:
        if (executor := self._running.get(arm)) is not None:
            executor.kill()

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._executors, self._free, self._threads = [], [], None

    def _execute(self, executor: _Here | ArmWorker, job: ArmJob) -> RunResult:
        try:
            return executor.run(job)
        finally:
            with self._lock:
                del self._running[job.arm.name]
                self._free.append(executor)

    def _arms_together(self, launch: Launch, gpus: list[str]) -> int:
        """How many arms share a GPU and its base model."""
        runs = launch.config.all_runs()
        if self.cfg.arms_in != "auto" or self.cfg.gpus_per_arm != 1 or not gpus or runs_own_code(launch.config):
            return 1
        if any(backend_of(run) != "local" for run in runs) or os.name == "nt":
            return 1
        if self.cfg.arms_per_gpu != "auto":
            return self.cfg.arms_per_gpu
        return min(get_backend("local")(**run.backend.params).arms_that_fit(run.model) for run in runs)

    def _briefing(self, launch: Launch, slots: int, remote: bool) -> bytes | None:
        """Settings of worker processes; None where the arms share this process.

        Built-ins run where they start fastest, others where they can do no harm and can be ended.
        """
        fork = runs_own_code(launch.config) and hasattr(os, "fork")
        mode: Mode = "forks" if fork else "here"
        if self.cfg.arms_in == "threads":
            _refuse_time_limit(launch, "a thread cannot be ended", "Remove launcher.params.arms_in.")
            return None
        if self.cfg.arms_in == "processes":
            return write_briefing(launch, mode)
        if not (fork or launch.config.arm_timeout_s is not None or (slots > 1 and not remote)):
            return None
        if os.name == "nt":  # where a worker cannot be given a connection
            _refuse_time_limit(launch, "arms share one process on this system", "Run it on Linux or macOS.")
            return None
        if (obstacle := _obstacle(launch.config)) is None:
            try:
                return write_briefing(launch, mode)
            except ConfigError as error:
                if slots > 1:
                    raise
                obstacle = str(error)
        _refuse_time_limit(launch, f"the arms must share this process: {obstacle}")
        get_logger(__name__).warning(
            "the arms share this process, which costs speed where there are several, and one that hangs or crashes "
            "takes it along: %s",
            obstacle,
        )
        return None

    def _room(self, remote: bool, gpus: list[str], together: int) -> int:
        if remote:
            return _REMOTE_ARMS
        if together > 1:  # they wait for the GPU most of the time
            return together * len(gpus)
        by_cpu = max(cpu_count() // self.cfg.cpus_per_arm, 1)
        return min(by_cpu, max(len(gpus) // self.cfg.gpus_per_arm, 1)) if gpus else by_cpu

    def _environment(self, slot: int, slots: int, gpus: list[str]) -> dict[str, str]:
        """Environment of a process for its share of the machine."""
        threads = max(cpu_count() // slots, self.cfg.cpus_per_arm, 1)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        # Each of these takes all cores if no one says otherwise, and all arms would do so at once.
        stated = {name: str(threads) for name in names if name not in os.environ}
        if gpus:
            first = slot * self.cfg.gpus_per_arm
            # Round and round: who asks for more arms at once than there are GPUs has them share.
            own = [gpus[(first + index) % len(gpus)] for index in range(self.cfg.gpus_per_arm)]
            stated["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        return stated


class _Here:
    """Executes one arm at a time in this process."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._control = RunControl()

    def run(self, job: ArmJob) -> RunResult:
        self._control = RunControl()  # what stopped one arm must not stop the next
        if not runs_own_code(self._launch.config):
            return execute(job, self._launch, self._control)
        # Where user code changes the working folder, a relative path would lead elsewhere.
        return execute(replace(job, run_dir=job.run_dir.absolute()), self._launch, self._control)

    def stop(self, arm: str, reason: str) -> None:
        self._control.stop(reason, interrupted=True)

    def kill(self) -> None:
        """A thread cannot be ended from outside."""

    def close(self) -> None:
        """Nothing is held."""


def _obstacle(config: ExperimentConfig) -> str | None:
    """Why no other process could execute the arms; None if one could."""
    if scripts := ProjectCode.for_workers(config).unreachable:
        return f"another process cannot import extensions registered in {', '.join(scripts)}. Move them to a module."
    if later := find_registered_later(config):
        return f"another process does not have {', '.join(later)}. Register them where their module is imported."
    return None


def _refuse_time_limit(launch: Launch, reason: str, hint: str = "") -> None:
    """Only a process can be ended when its time is over."""
    if launch.config.arm_timeout_s is not None:
        raise ConfigError(Problem(f"arm_timeout_s cannot be kept: {reason}", path="arm_timeout_s", hint=hint))


def _is_remote(launch: Launch) -> bool:
    """Whether no arm computes here."""
    kinds = {backend_of(run) for run in launch.config.all_runs()}
    return all(getattr(get_backend(kind), "remote", False) for kind in kinds)
