"""Arms as tasks of a Ray cluster: one that is there, or one that is started on this machine for the experiment.

A task asks for the CPUs, GPUs and other resources of one arm, so Ray decides where and when it runs. Where a worker
sees the folder of the experiment it writes there; where it does not, it works in a folder of the same name, and what it
has written comes back with each checkpoint and at its end. An arm whose worker or machine is lost continues elsewhere,
from its last checkpoint.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import pickle
import secrets
from concurrent.futures import Future
from typing import Any, ClassVar

from pydantic import Field

from ...config.base import Strict
from ...errors import ConfigError, Problem
from ...protocols import RunResult
from ...record.layout import ExperimentFiles
from ..arms.project_code import ProjectCode
from ..launcher import ArmJob, Launch, WorkerLost, cpu_count, visible_gpus
from .ray_task import MessageBoard, run_task, unpack


class RayLauncherConfig(Strict):
    """Params of the `ray` launcher."""

    address: str | None = None
    """Cluster to use, e.g. `auto` or `ray://head:10001`; by default one is started on this machine."""
    cpus_per_arm: float = Field(default=1.0, ge=0)
    """CPUs that an arm reserves."""
    gpus_per_arm: float = Field(default=0.0, ge=0)
    """GPUs that an arm reserves; a fraction shares one."""
    resources: dict[str, float] = {}
    """Other resources that an arm reserves, by the names the cluster gives them."""
    runtime_env: dict[str, Any] = {}
    """What Ray prepares on its workers, e.g. `{working_dir: .}` where they do not see this disk."""
    retries: int = Field(default=3, ge=0)
    """How often an arm continues elsewhere after its worker or machine was lost."""


class RayLauncher:
    """Executes arms as tasks of a Ray cluster."""

    name: ClassVar[str] = "ray"
    Config: ClassVar[type[RayLauncherConfig]] = RayLauncherConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)
        self._tasks: dict[str, Any] = {}
        self._started_cluster = False

    def open(self, launch: Launch, n_arms: int) -> int:
        import ray

        code = ProjectCode.for_workers(launch.config)
        if code.unreachable:
            hint = "Move them to a module of their own."
            message = f"Ray's workers cannot import extensions registered in {', '.join(code.unreachable)}"
            raise ConfigError(Problem(message, path="launcher", hint=hint))
        self._connect()
        # A worker that sees this file works on the same disk, and need not send anything back.
        self._token = ExperimentFiles(launch.experiment_dir).token
        self._token.write_text(launch.experiment_dir.name, encoding="utf-8")
        self._shared = ray.put(pickle.dumps((code, launch)))
        self._board = self._new_board()
        self._task = ray.remote(run_task).options(
            num_cpus=self.cfg.cpus_per_arm,
            num_gpus=self.cfg.gpus_per_arm,
            resources=self.cfg.resources,
            # Its own Workers: those of an earlier experiment have the code that its project had then.
            runtime_env={"env_vars": {"EVSYS_LAUNCH": secrets.token_hex(4)}},
            max_retries=0,  # the scheduler tries again, because it knows that there is a checkpoint to continue from
        )
        return min(launch.max_concurrent or self._room(), max(n_arms, 1))

    def start(self, job: ArmJob) -> Future[RunResult]:
        import ray

        # What a lost worker on another disk had sent by then is what the arm continues from.
        unpack(ray.get(self._board.files.remote(job.arm.name)), job.run_dir)
        ray.get(self._board.clear.remote(job.arm.name))
        task = self._task.remote(self._shared, pickle.dumps(job), str(self._token), os.getcwd(), self._board)
        self._tasks[job.arm.name] = task
        done: Future[RunResult] = Future()
        task.future().add_done_callback(lambda finished: self._finish(job, finished, done))
        return done

    def stop(self, arm: str, reason: str) -> None:
        if arm in self._tasks:
            self._board.stop.remote(arm, reason)

    def kill(self, arm: str) -> None:
        import ray

        if arm in self._tasks:
            ray.cancel(self._tasks[arm], force=True)

    def close(self) -> None:
        import ray

        self._tasks.clear()
        if hasattr(self, "_board"):
            ray.kill(self._board)
            self._token.unlink(missing_ok=True)
        if self._started_cluster:
            ray.shutdown()

    def _connect(self) -> None:
        """Use the cluster this process is connected to, the one that was named, or a new one."""
        import ray

        if ray.is_initialized():
            return
        # Workers find the SDK and the project the way this process does, also where they are not installed.
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(ProjectCode.of_this_process().path)}}
        options: dict[str, Any] = {"runtime_env": {**environment, **self.cfg.runtime_env}, "include_dashboard": False}
        if self.cfg.address is None:
            cpus = max(cpu_count(), round(self.cfg.cpus_per_arm))
            # `local`: otherwise Ray would join whatever cluster RAY_ADDRESS names.
            options |= {"num_cpus": cpus, "num_gpus": len(visible_gpus()), "address": "local"}
        else:
            options |= {"address": self.cfg.address}
            del options["include_dashboard"]
        try:
            ray.init(logging_level="warning", configure_logging=False, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = self.cfg.address or "this machine"
            hint = "Check launcher.params.address, or leave it out to start a cluster on this machine."
            message = f"no Ray cluster at {where}: {error}"
            raise ConfigError(Problem(message, path="launcher.params.address", hint=hint)) from None
        self._started_cluster = True

    def _new_board(self) -> Any:
        """A message board next to this process: were it on a machine that is lost, all arms would be lost with it."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        # It mostly waits; a core of its own would be one less for the arms.
        options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
        return ray.remote(MessageBoard).options(**options).remote()

    def _room(self) -> int:
        """How many arms the whole cluster has room for."""
        import ray

        have: dict[str, float] = ray.cluster_resources()
        wanted = {"CPU": self.cfg.cpus_per_arm, "GPU": self.cfg.gpus_per_arm, **self.cfg.resources}
        rooms = {name: int(have.get(name, 0.0) / amount) for name, amount in wanted.items() if amount}
        lacking = next((name for name, room in rooms.items() if room == 0), None)
        if lacking is not None:
            hint = "Ask for less in launcher.params, or add such a machine to the cluster."
            message = f"an arm asks for {wanted[lacking]:g} {lacking}, and the cluster has {have.get(lacking, 0.0):g}"
            raise ConfigError(Problem(message, path="launcher.params", hint=hint))
        return min(rooms.values(), default=1)

    def _finish(self, job: ArmJob, finished: Any, done: Future[RunResult]) -> None:
        self._tasks.pop(job.arm.name, None)
        try:
            result, files = pickle.loads(finished.result())
            unpack(files, job.run_dir)
            done.set_result(result)
        except Exception as error:
            said = str(error).strip().splitlines() or ["no reason was given"]  # the rest is about Ray
            done.set_exception(WorkerLost(f"{type(error).__name__}: {said[0]}", retries=self.cfg.retries))
