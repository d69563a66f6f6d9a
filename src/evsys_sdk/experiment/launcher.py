"""Where arms are executed: the contract of launchers, and what they all do with an arm.

A launcher decides in which thread, process or machine `execute` is called. It never decides which arms run, what they
are or what becomes of their results, so that the record is the same whichever launched it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from ..config import ExperimentConfig
from ..errors import EvsysError
from ..inference.client import paying
from ..protocols import RunResult
from ..record.lock import folder_lock
from ..registry import get_callback
from ..spend.ledger import open_ledger
from ..spend.meter import meter_for
from ..training.callback import Callback, RunControl
from .arms.arm import Arm
from .arms.results import fail_run
from .record_dir import write_result
from .runner import ArmOptions, run_arm

TIMEOUT = "timeout"
_GRACE_S = 1.0
"""How long after its time an arm that was asked to stop is waited for."""
_LEAD, _LONGEST_LEAD_S = 0.1, 30.0
"""An arm is asked to stop this share of its time before the end, to finish its step and write a checkpoint."""
_LOCK_PATIENCE_S = 60.0
"""How long a killed experiment's last worker may take to notice."""


@dataclass(frozen=True, slots=True)
class ArmJob:
    """One arm to execute; small, because it may travel to another machine."""

    arm: Arm
    run_dir: Path
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """What all arms of an experiment share."""

    config: ExperimentConfig
    experiment_dir: Path
    max_concurrent: int | None = None
    """Upper limit of arms at the same time; None lets the launcher decide."""
    callbacks: Sequence[Callable[[], Callback]] = ()
    """Make further observers of each arm, next to those the config names."""


@runtime_checkable
class Launcher(Protocol):
    """Executes arms somewhere."""

    name: ClassVar[str]

    def open(self, launch: Launch, n_arms: int) -> int:
        """Get ready for an experiment of so many arms; returns how many can run at the same time."""
        ...

    def start(self, job: ArmJob) -> Future[RunResult]:
        """Execute an arm; called at most as often at a time as `open` said. The future raises only `WorkerLost`."""
        ...

    def stop(self, arm: str, reason: str) -> None:
        """Ask a running arm for a clean stop with a checkpoint; may be called from a signal handler."""
        ...

    def kill(self, arm: str) -> None:
        """End a running arm that does not react, where that is possible; its future then raises `WorkerLost`."""
        ...

    def close(self) -> None:
        """Release everything; no arm is running."""
        ...


class WorkerLost(Exception):
    """Whatever executed an arm is gone: a process was killed, a machine went away."""

    def __init__(self, message: str, *, retries: int = 0, final: bool = False) -> None:
        """`retries` says how often an arm continues elsewhere after such a loss, whatever the config allows.

        A `final` loss was no accident: the arm would only be lost again.
        """
        super().__init__(message)
        self.retries, self.final = retries, final


def execute(job: ArmJob, launch: Launch, control: RunControl) -> RunResult:
    """Train and score one arm, here and now; whatever goes wrong becomes its result."""
    try:
        return _execute(job, launch, control)
    except Exception as error:  # of the folder or its lock; what goes wrong in the arm is its result already
        return fail_run(job.arm.name, error)


def refuse(job: ArmJob, error: EvsysError) -> RunResult:
    """The result of an arm that cannot be executed where it was sent, because project code cannot be imported there."""
    result = fail_run(job.arm.name, error)
    with suppress(OSError):
        write_result(job.run_dir, result, hparams=job.arm.run.model_dump(mode="json"))
    return result


def _execute(job: ArmJob, launch: Launch, control: RunControl) -> RunResult:
    config = launch.config
    own = [partial(get_callback(spec.kind), **spec.arguments) for spec in config.callbacks]
    what = f"run '{job.arm.name}'"
    with (
        # Before the clock starts: waiting for an orphan of a killed experiment is not the arm's time.
        folder_lock(job.run_dir, what=what, patience_s=_LOCK_PATIENCE_S),
        closing(open_ledger(launch.experiment_dir)) as ledger,
        _time_limit(config.arm_timeout_s, control),
    ):
        meter = meter_for(ledger, job.arm.run, config)
        callbacks = [*own, *launch.callbacks]
        options = ArmOptions(job.run_dir, resume=job.resume, callbacks=callbacks, control=control, meter=meter)
        with paying(meter):
            return run_arm(job.arm, config, options)


def timeout_reason(seconds: float) -> str:
    """Why an arm stops whose time is over."""
    return f"{TIMEOUT}: the arm took longer than arm_timeout_s={seconds:g}"


def kill_after_s(limit_s: float) -> float:
    """How long after its beginning an arm is ended that does not stop by itself."""
    return limit_s + _GRACE_S


@contextmanager
def _time_limit(seconds: float | None, control: RunControl) -> Generator[None]:
    """Ask for a clean stop shortly before the time is over; who does not react has to be killed by the launcher."""
    if seconds is None:
        yield
        return
    ask_after = seconds - min(seconds * _LEAD, _LONGEST_LEAD_S)
    timer = threading.Timer(ask_after, lambda: control.stop(timeout_reason(seconds), interrupted=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# What this machine has to give: cores and GPUs. Nothing heavy is imported to find out.


def cpu_count() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:
        # macOS and Windows do not say.
        return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        # The last two mean "no GPU" for CUDA and for Slurm.
        return [gpu for gpu in given.split(",") if gpu.strip() not in ("", "-1", "NoDevFiles")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        found = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index, line in enumerate(found.stdout.splitlines()) if line.startswith("GPU ")]
