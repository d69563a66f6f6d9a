"""Run arms on this machine: in this process, in threads, or in worker processes.

A single arm at a time of built-ins runs in this process; arms of remote backends, which only wait, are threads of it.
Arms that compute get a worker process each, which is kept for the next arm, and a GPU each if there are any. Arms of
the backend `local` may share a process and the base model. Arms with user code or a time limit always get a process,
because a process can be killed, and a crash ends only one arm.
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
"""Arms of a remote backend at the same time, unless the config sets a number."""


class LocalLauncherConfig(Strict):
    """Params of the `local` launcher."""

    arms_in: Where = "auto"
    """`threads` of this process or `processes`; by default threads for remote backends, processes for the others."""
    cpus_per_arm: int = Field(default=1, ge=1)
    """Cores an arm may use; this limits the arms at the same time if the config does not."""
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
                SharedWorker(launch, together_briefing, ArmWorker(launch, briefing, share), share) for share in shares
            ]
            executors = [executors[slot % len(executors)] for slot in range(slots)]
        else:
            shares = [self._environment(slot, slots, gpus) for slot in range(slots)]
            executors = [ArmWorker(launch, briefing, share) for share in shares]
        self._executors = list(executors)
        self._free = self._executors[::-1]  # `pop` takes the first slot first
        if briefing is not None or slots > 1:
            # A thread waits for each worker process.
            self._threads = ThreadPoolExecutor(slots, thread_name_prefix="evsys-arm")
        return slots

    def start(self, job: ArmJob) -> Future[RunResult]:
        with self._lock:
            executor = self._free.pop()
            self._running[job.arm.name] = executor
        if self._threads is not None:
            return self._threads.submit(self._execute, executor, job)
        future: Future[RunResult] = Future()
        try:
            future.set_result(self._execute(executor, job))
        except Exception as error:
            # A second Ctrl-C is not an Exception: it ends this process.
            future.set_exception(error)
        return future

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
        """The number of arms that share a GPU and its base model."""
        runs = launch.config.all_runs()
        if self.cfg.arms_in != "auto" or self.cfg.gpus_per_arm != 1 or not gpus or runs_own_code(launch.config):
            return 1
        if any(backend_of(run) != "local" for run in runs) or os.name == "nt":
            return 1
        if self.cfg.arms_per_gpu != "auto":
            return self.cfg.arms_per_gpu
        return min(get_backend("local")(**run.backend.params).arms_that_fit(run.model) for run in runs)

    def _briefing(self, launch: Launch, slots: int, remote: bool) -> bytes | None:
        """Settings of worker processes; None if the arms run in this process.

        Built-ins run where they start fastest, user code where it can be killed.
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
        if os.name == "nt":  # a worker cannot inherit a connection
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
            "the arms run in this process, which is slower for several arms, and an arm that hangs or crashes stops "
            "the experiment: %s",
            obstacle,
        )
        return None

    def _room(self, remote: bool, gpus: list[str], together: int) -> int:
        if remote:
            return _REMOTE_ARMS
        if together > 1:  # arms mostly wait for the GPU
            return together * len(gpus)
        by_cpu = max(cpu_count() // self.cfg.cpus_per_arm, 1)
        return min(by_cpu, max(len(gpus) // self.cfg.gpus_per_arm, 1)) if gpus else by_cpu

    def _environment(self, slot: int, slots: int, gpus: list[str]) -> dict[str, str]:
        """Environment variables that limit a process to its share of the machine."""
        threads = max(cpu_count() // slots, self.cfg.cpus_per_arm, 1)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        # By default each library uses all cores.
        environment = {name: str(threads) for name in names if name not in os.environ}
        if gpus:
            first = slot * self.cfg.gpus_per_arm
            # With more arms than GPUs, arms share GPUs.
            shared = [gpus[(first + index) % len(gpus)] for index in range(self.cfg.gpus_per_arm)]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(shared)
        return environment


class _Here:
    """Executes one arm at a time in this process."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._control = RunControl()

    def run(self, job: ArmJob) -> RunResult:
        self._control = RunControl()  # a stop of the previous arm does not stop this one
        if not runs_own_code(self._launch.config):
            return execute(job, self._launch, self._control)
        # Absolute, because user code may change the working folder.
        return execute(replace(job, run_dir=job.run_dir.absolute()), self._launch, self._control)

    def stop(self, arm: str, reason: str) -> None:
        self._control.stop(reason, interrupted=True)

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed."""

    def close(self) -> None:
        """Do nothing."""


def _obstacle(config: ExperimentConfig) -> str | None:
    """The reason why another process cannot execute the arms, or None."""
    if scripts := ProjectCode.for_workers(config).unreachable:
        cause = f"another process cannot import extensions registered in {', '.join(scripts)}"
        return f"{cause}. Move them to a separate module."
    if later := find_registered_later(config):
        return f"another process does not have {', '.join(later)}. Register them where their module is imported."
    return None


def _refuse_time_limit(launch: Launch, reason: str, hint: str = "") -> None:
    """Refuse `arm_timeout_s` for arms without a process, which cannot be killed."""
    if launch.config.arm_timeout_s is not None:
        raise ConfigError(Problem(f"arm_timeout_s cannot be kept: {reason}", path="arm_timeout_s", hint=hint))


def _is_remote(launch: Launch) -> bool:
    """Whether all arms compute on a remote backend."""
    kinds = {backend_of(run) for run in launch.config.all_runs()}
    return all(getattr(get_backend(kind), "remote", False) for kind in kinds)
