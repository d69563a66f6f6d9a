"""The contract of launchers, and `execute`, which all of them call for an arm.

A launcher chooses the thread, process or machine. The scheduler chooses the arms and keeps their results, so the record
does not depend on the launcher.
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
"""An arm that is still running this long after its time limit is killed."""
_LEAD, _LONGEST_LEAD_S = 0.1, 30.0
"""An arm is asked to stop this share of its time limit before the end, to finish its step and save a checkpoint."""
_LOCK_PATIENCE_S = 60.0
"""Longest wait for the last worker of a killed experiment to release the folder."""


@dataclass(frozen=True, slots=True)
class ArmJob:
    """One arm to execute; small, because it may be sent to another machine."""

    arm: Arm
    run_dir: Path
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings that all arms of an experiment share."""

    config: ExperimentConfig
    experiment_dir: Path
    max_concurrent: int | None = None
    """Most arms at the same time; None lets the launcher decide."""
    callbacks: Sequence[Callable[[], Callback]] = ()
    """Factories of callbacks for each arm, next to those of the config."""


@runtime_checkable
class Launcher(Protocol):
    """Executes arms in threads, in processes or on other machines."""

    name: ClassVar[str]

    def open(self, launch: Launch, n_arms: int) -> int:
        """Prepare for `n_arms` arms; return how many can run at the same time."""
        ...

    def start(self, job: ArmJob) -> Future[RunResult]:
        """Execute an arm, with at most as many at a time as `open` returned. The future raises only `WorkerLost`."""
        ...

    def stop(self, arm: str, reason: str) -> None:
        """Ask a running arm for a clean stop with a checkpoint; may be called from a signal handler."""
        ...

    def kill(self, arm: str) -> None:
        """End a running arm that does not stop, if possible; its future then raises `WorkerLost`."""
        ...

    def close(self) -> None:
        """Release everything; no arm is running."""
        ...


class WorkerLost(Exception):
    """The process or machine that executed an arm is gone."""

    def __init__(self, message: str, *, retries: int = 0, final: bool = False) -> None:
        """`retries` is the number of retries after such a loss, in addition to the config's.

        After a `final` loss the arm is not retried, because it would be lost again.
        """
        super().__init__(message)
        self.retries, self.final = retries, final


def execute(job: ArmJob, launch: Launch, control: RunControl) -> RunResult:
    """Train and score one arm in this process; an error becomes a failed result."""
    try:
        return _execute(job, launch, control)
    except Exception as error:  # of the folder or its lock; errors of the arm are in its result already
        return fail_run(job.arm.name, error)


def refuse(job: ArmJob, error: EvsysError) -> RunResult:
    """The result of an arm whose worker cannot import the project's code."""
    result = fail_run(job.arm.name, error)
    with suppress(OSError):
        write_result(job.run_dir, result, hparams=job.arm.run.model_dump(mode="json"))
    return result


def _execute(job: ArmJob, launch: Launch, control: RunControl) -> RunResult:
    config = launch.config
    configured = [partial(get_callback(spec.kind), **spec.arguments) for spec in config.callbacks]
    what = f"run '{job.arm.name}'"
    with (
        # Before the clock starts: the wait for a worker of a killed experiment is not the arm's time.
        folder_lock(job.run_dir, what=what, patience_s=_LOCK_PATIENCE_S),
        closing(open_ledger(launch.experiment_dir)) as ledger,
        _time_limit(config.arm_timeout_s, control),
    ):
        meter = meter_for(ledger, job.arm.run, config)
        callbacks = [*configured, *launch.callbacks]
        options = ArmOptions(job.run_dir, resume=job.resume, callbacks=callbacks, control=control, meter=meter)
        with paying(meter):
            return run_arm(job.arm, config, options)


def timeout_reason(seconds: float) -> str:
    """The stop reason of an arm that reached its time limit."""
    return f"{TIMEOUT}: the arm took longer than arm_timeout_s={seconds:g}"


def kill_after_s(limit_s: float) -> float:
    """Seconds after its start at which an arm is killed if it has not stopped."""
    return limit_s + _GRACE_S


@contextmanager
def _time_limit(seconds: float | None, control: RunControl) -> Generator[None]:
    """Ask for a clean stop shortly before the time limit; an arm that does not stop is killed by the launcher."""
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


def cpu_count() -> int:
    """The cores that this process may use; in a container often fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:
        # Not available on macOS and Windows.
        return os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # "-1" means no GPU for CUDA, "NoDevFiles" for Slurm.
        return [gpu for gpu in visible.split(",") if gpu.strip() not in ("", "-1", "NoDevFiles")]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(index) for index, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]
