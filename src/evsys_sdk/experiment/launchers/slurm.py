"""Arms as tasks of Slurm job arrays; the record is written to the disk that all nodes share.

What is started at the same time is one array. A task finds its arm in a folder below `.evsys/slurm`, and leaves its
result there. A task that Slurm requeues after a preemption continues from its last checkpoint; one that Slurm gives up
(a lost node, the end of its time) is submitted again, as often as `retries` allows.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...errors import ConfigError, EvsysError, Problem
from ...files import atomic_write
from ...paths import workspace_dir
from ...protocols import RunResult
from ..arms.project_code import ProjectCode
from ..launcher import ArmJob, Launch, WorkerLost
from .cluster_task import SHARED

_TOGETHER_S = 0.3
"""How long to wait for further arms of the same array."""
_COMMAND_S = 60.0
_WARNING_S = 60
"""How long before the end of its time a task is asked to save its state."""
_LOST = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "GONE"}
"""States in which Slurm does not start a task again by itself; `GONE`: the queue has forgotten it."""


class SlurmLauncherConfig(Strict):
    """Params of the `slurm` launcher."""

    partition: str | None = None
    """Partition of the cluster; by default that of Slurm."""
    account: str | None = None
    """Account that the time is charged to."""
    time: str | None = None
    """Time limit of an arm as Slurm writes it, such as `4:00:00` or `1-00:00:00`."""
    cpus_per_arm: int = Field(default=1, ge=1)
    """CPUs that an arm reserves."""
    gpus_per_arm: int = Field(default=0, ge=0)
    """GPUs that an arm reserves (`--gres=gpu:N`)."""
    memory: str | None = None
    """Memory that an arm reserves, such as `32G`."""
    options: list[str] = []
    """Further options of sbatch, such as `--constraint=h100`."""
    setup: list[str] = []
    """Shell lines before an arm starts, such as `module load cuda`."""
    retries: int = Field(default=3, ge=0)
    """How often a lost arm is submitted again; tasks that Slurm requeues do not count."""
    poll_s: float = Field(default=2.0, gt=0)
    """Seconds between queries of the queue."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One arm in the queue."""

    job: ArmJob
    done: Future[RunResult]
    folder: Path
    index: int
    array: str

    @property
    def slurm_id(self) -> str:
        return f"{self.array}_{self.index}"


class SlurmLauncher:
    """Executes arms as tasks of Slurm job arrays."""

    name: ClassVar[str] = "slurm"
    Config: ClassVar[type[SlurmLauncherConfig]] = SlurmLauncherConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._tasks: dict[str, _Task] = {}
        self._waiting: queue.SimpleQueue[tuple[ArmJob, Future[RunResult]]] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, launch: Launch, n_arms: int) -> int:
        if shutil.which("sbatch") is None:
            hint = "Start evsys on a login node of the cluster, or choose another launcher."
            raise ConfigError(Problem("there is no sbatch on PATH", "launcher.kind", self.name, hint))
        if launch.config.arm_timeout_s is not None:
            hint = "Write launcher.params.time, e.g. 4:00:00, which counts from the start of an arm."
            message = "on Slurm it would count the time that an arm waits in the queue"
            raise ConfigError(Problem(message, "arm_timeout_s", launch.config.arm_timeout_s, hint))
        code = ProjectCode.for_workers(launch.config)
        if code.unreachable:
            message = f"nodes of the cluster cannot import extensions registered in {', '.join(code.unreachable)}"
            raise ConfigError(Problem(message, path="launcher", hint="Move them to a separate module."))
        self._folder = workspace_dir() / self.name / secrets.token_hex(4)
        self._folder.mkdir(parents=True)
        write_pickle(self._folder / SHARED, (code, launch))
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return min(launch.max_concurrent or n_arms, max(n_arms, 1))

    def start(self, job: ArmJob) -> Future[RunResult]:
        done: Future[RunResult] = Future()
        self._waiting.put((job, done))
        return done

    def stop(self, arm: str, reason: str) -> None:
        if (task := self._tasks.get(arm)) is not None:
            task_file(task.folder, task.index, "stop").write_text(reason, encoding="utf-8")

    def kill(self, arm: str) -> None:
        if (task := self._tasks.get(arm)) is not None:
            with suppress(EvsysError):  # the task has ended
                _run(["scancel", task.slurm_id])

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_COMMAND_S)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        """Submit started arms and collect results, until the launcher is closed."""
        while not self._ended.wait(_TOGETHER_S):
            jobs: list[tuple[ArmJob, Future[RunResult]]] = []
            with suppress(queue.Empty):
                while True:
                    jobs.append(self._waiting.get_nowait())
            if jobs:
                self._submit(jobs)
            if self._tasks and not self._ended.wait(0 if jobs else max(self.cfg.poll_s - _TOGETHER_S, 0)):
                self._collect()

    def _submit(self, jobs: Sequence[tuple[ArmJob, Future[RunResult]]]) -> None:
        """Submit arms as one array."""
        folder = self._folder / secrets.token_hex(4)
        folder.mkdir()
        for index, (job, _) in enumerate(jobs):
            write_pickle(task_file(folder, index, "job"), job)
        path = os.pathsep.join(ProjectCode.of_this_process().path)
        run = [sys.executable, "-m", "evsys_sdk.experiment.launchers.slurm_task", str(self._folder), str(folder)]
        lines = ["#!/bin/bash", *self.cfg.setup, f"export PYTHONPATH={shlex.quote(path)}", f"exec {shlex.join(run)}"]
        script = folder / "arm.sh"
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            answer = _run(["sbatch", "--parsable", *self._options(folder, len(jobs)), str(script)])
        except EvsysError as error:
            for _, done in jobs:
                done.set_exception(WorkerLost(str(error), final=True))
            return
        array = answer.strip().partition(";")[0]
        for index, (job, done) in enumerate(jobs):
            self._tasks[job.arm.name] = _Task(job, done, folder, index, array)

    def _options(self, folder: Path, n: int) -> list[str]:
        values = {"partition": self.cfg.partition, "account": self.cfg.account, "time": self.cfg.time}
        values |= {"mem": self.cfg.memory, "gres": f"gpu:{self.cfg.gpus_per_arm}" if self.cfg.gpus_per_arm else None}
        return [
            f"--array=0-{n - 1}",
            "--requeue",
            "--job-name=evsys",
            f"--cpus-per-task={self.cfg.cpus_per_arm}",
            f"--chdir={Path.cwd()}",
            f"--output={folder}/%a.out",
            "--open-mode=append",
            f"--signal=B:TERM@{_WARNING_S}",
            *(f"--{name}={value}" for name, value in values.items() if value is not None),
            *self.cfg.options,
        ]

    def _collect(self) -> None:
        """Collect results, and report tasks that Slurm has lost."""
        # The states come first: a task that ends in between has a result.
        states = _states({task.array for task in self._tasks.values()})
        for name, task in list(self._tasks.items()):
            result = task_file(task.folder, task.index, "result")
            state = None if states is None else states.get(task.slurm_id, "GONE")
            if result.exists():
                del self._tasks[name]
                task.done.set_result(pickle.loads(result.read_bytes()))
            elif state in _LOST:
                del self._tasks[name]
                output = task.folder / f"{task.index}.out"
                last = output.read_text("utf-8", "replace").strip().splitlines()[-1:] if output.exists() else []
                reason = ": ".join([f"Slurm ended task {task.slurm_id} ({state})", *last])
                task.done.set_exception(WorkerLost(reason, retries=self.cfg.retries))


def _states(arrays: set[str]) -> dict[str, str] | None:
    """Task -> state, for all tasks in the queue; None if the controller does not answer."""
    states: dict[str, str] = {}
    for array in arrays:
        try:
            listed = _run(["squeue", "--noheader", "--array", f"--jobs={array}", "--states=all", "--format=%i %T"])
        except EvsysError as error:
            if "Invalid job id" in str(error):  # the queue has forgotten an array that ended
                continue
            return None
        states |= dict(line.split() for line in listed.splitlines() if line.strip())
    return states


def write_pickle(path: Path, value: Any) -> None:
    """Write a value atomically."""
    with atomic_write(path) as file:
        file.write(pickle.dumps(value))


def task_file(folder: Path, index: int, what: str) -> Path:
    """The path of the `job`, the `result` or the `stop` request of a task."""
    return folder / f"{index}.{what}"


def _run(command: Sequence[str]) -> str:
    """Run a Slurm command and return its output."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EvsysError(f"{command[0]} could not be run: {error}. Check that the cluster answers.") from error
    if process.returncode:
        raise EvsysError(f"{command[0]} failed: {process.stderr.strip()}. Check launcher.params and the cluster.")
    return process.stdout
