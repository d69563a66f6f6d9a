"""Arms as tasks of a Ray cluster: one that is there, or one that is started on this machine for the experiment.

A task asks for the CPUs and GPUs of one arm, so Ray decides where and when it runs. The record is
written to the disk that all workers share. An arm whose worker or machine is lost continues elsewhere, from its last
checkpoint.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import pickle
import secrets
import shutil
from concurrent.futures import Future
from importlib import import_module
from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...errors import ConfigError, Problem
from ...paths import workspace_dir
from ...protocols import RunResult
from ..arms.project_code import ProjectCode
from ..launcher import ArmJob, Launch, WorkerLost, cpu_count, visible_gpus
from .cluster_task import SHARED, run_ray_task


class RayLauncherConfig(Strict):
    """Params of the `ray` launcher."""

    address: str | None = None
    """Cluster to use, e.g. `auto` or `ray://head:10001`; by default one is started on this machine."""
    cpus_per_arm: float = Field(default=1.0, ge=0)
    """CPUs that an arm reserves."""
    gpus_per_arm: float = Field(default=0.0, ge=0)
    """GPUs that an arm reserves; a fraction shares one."""
    runtime_env: dict[str, Any] = {}
    """What Ray prepares on its workers, e.g. `{pip: [...]}`."""
    retries: int = Field(default=3, ge=0)
    """How often an arm is resumed on another worker after its worker or machine was lost."""


class RayLauncher:
    """Executes arms as tasks of a Ray cluster."""

    name: ClassVar[str] = "ray"
    Config: ClassVar[type[RayLauncherConfig]] = RayLauncherConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._tasks: dict[str, Any] = {}
        self._started_cluster = False

    @property
    def _ray(self) -> Any:
        return import_module("ray")

    def open(self, launch: Launch, n_arms: int) -> int:
        code = ProjectCode.for_workers(launch.config)
        if code.unreachable:
            hint = "Move them to a separate module."
            message = f"Ray's workers cannot import extensions registered in {', '.join(code.unreachable)}"
            raise ConfigError(Problem(message, path="launcher", hint=hint))
        self._connect()
        self._folder = workspace_dir() / self.name / secrets.token_hex(4)
        self._folder.mkdir(parents=True)
        (self._folder / SHARED).write_bytes(pickle.dumps((code, launch)))
        self._task = self._ray.remote(run_ray_task).options(
            num_cpus=self.cfg.cpus_per_arm,
            num_gpus=self.cfg.gpus_per_arm,
            # New workers: those of an earlier experiment may have imported older code of the project.
            runtime_env={"env_vars": {"EVSYS_LAUNCH": secrets.token_hex(4)}},
            max_retries=0,  # the scheduler retries, from a checkpoint
        )
        return min(launch.max_concurrent or self._room(), max(n_arms, 1))

    def start(self, job: ArmJob) -> Future[RunResult]:
        stop_file = self._folder / job.arm.name
        stop_file.unlink(missing_ok=True)  # of an earlier attempt
        task = self._task.remote(str(self._folder), pickle.dumps(job), str(stop_file), os.getcwd())
        self._tasks[job.arm.name] = task
        future: Future[RunResult] = Future()
        task.future().add_done_callback(lambda finished: self._finish(job, finished, future))
        return future

    def stop(self, arm: str, reason: str) -> None:
        if arm in self._tasks:
            (self._folder / arm).write_text(reason, encoding="utf-8")

    def kill(self, arm: str) -> None:
        if arm in self._tasks:
            self._ray.cancel(self._tasks[arm], force=True)

    def close(self) -> None:
        self._tasks.clear()
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._started_cluster:
            self._ray.shutdown()

    def _connect(self) -> None:
        """Connect to the cluster of this process, to the one in the params, or to a new one."""
        if self._ray.is_initialized():
            return
        # Workers import the SDK and the project from the same paths, even if they are not installed.
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(ProjectCode.of_this_process().path)}}
        options: dict[str, Any] = {"runtime_env": {**environment, **self.cfg.runtime_env}, "include_dashboard": False}
        if self.cfg.address is None:
            cpus = max(cpu_count(), round(self.cfg.cpus_per_arm))
            # `local`, so that Ray ignores RAY_ADDRESS.
            options |= {"num_cpus": cpus, "num_gpus": len(visible_gpus()), "address": "local"}
        else:
            options |= {"address": self.cfg.address}
            del options["include_dashboard"]
        try:
            self._ray.init(logging_level="warning", configure_logging=False, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = self.cfg.address or "this machine"
            hint = "Check launcher.params.address, or leave it out to start a cluster on this machine."
            message = f"no Ray cluster at {where}: {error}"
            raise ConfigError(Problem(message, path="launcher.params.address", hint=hint)) from None
        self._started_cluster = True

    def _room(self) -> int:
        """The number of arms that fit on the whole cluster."""
        have: dict[str, float] = self._ray.cluster_resources()
        needed = {"CPU": self.cfg.cpus_per_arm, "GPU": self.cfg.gpus_per_arm}
        rooms = {name: int(have.get(name, 0.0) / amount) for name, amount in needed.items() if amount}
        short = next((name for name, room in rooms.items() if room == 0), None)
        if short is not None:
            hint = "Ask for less in launcher.params, or add such a machine to the cluster."
            message = f"an arm asks for {needed[short]:g} {short}, and the cluster has {have.get(short, 0.0):g}"
            raise ConfigError(Problem(message, path="launcher.params", hint=hint))
        return min(rooms.values(), default=1)

    def _finish(self, job: ArmJob, finished: Any, future: Future[RunResult]) -> None:
        self._tasks.pop(job.arm.name, None)
        try:
            if (result := finished.result()) is None:
                remedy = "Mount it there, or use another launcher."
                future.set_exception(WorkerLost(f"a worker of Ray does not see {self._folder}. {remedy}", final=True))
            else:
                future.set_result(pickle.loads(result))
        except Exception as error:
            lines = str(error).strip().splitlines() or ["no reason was given"]  # the rest is about Ray
            future.set_exception(WorkerLost(f"{type(error).__name__}: {lines[0]}", retries=self.cfg.retries))
