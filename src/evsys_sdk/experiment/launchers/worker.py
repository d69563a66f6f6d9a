"""The program of a worker: it imports the project's code once and executes arms until its parent is gone.

The worker executes arms of built-ins itself and keeps loaded modules and models for the next arm. An arm with user code
runs in a fork of the worker, so that exits, crashes, threads, forks, closed files and a changed working folder do not
affect other arms or the parent.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from ...config.checks.deep import deep_problems
from ...errors import EvsysError
from ...log import get_logger
from ...processes import adopt_orphans, end_leftovers
from ...training.callback import RunControl
from ..arms.results import portable
from ..launcher import ArmJob, Launch, execute, refuse

_DEVICE_LOST = 70
"""Exit code of a process that lost its GPU."""


def main(descriptor: int) -> None:
    """The worker's side: execute arms until the parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group, and the parent handles it
        signal.signal(number, _pass_over)
    connection = Connection(descriptor)
    code, launch, python_path, mode = pickle.loads(connection.recv_bytes())
    os.environ.pop("PYTHONPATH", None)  # for this process only; it would break another Python in a sandbox
    if python_path is not None:
        os.environ["PYTHONPATH"] = python_path
    problem = None
    try:
        connection.send(("", "imports", os.getpid()))
        code.load()
    except EvsysError as error:
        problem = error
    arms = _Arms(connection, launch, problem)
    if mode == "forks":
        _fork_for_each_arm(connection, arms, launch)
    threading.Thread(target=arms.listen, daemon=True).start()
    while True:
        job = arms.jobs.get()
        if mode == "threads":
            threading.Thread(target=arms.complete, args=(job,), name=job.arm.name, daemon=True).start()
        else:
            arms.complete(job)


class _Arms:
    """Executes arms in this process while a thread reads messages of the parent."""

    def __init__(self, connection: Connection, launch: Launch, problem: EvsysError | None) -> None:
        self._connection, self._launch, self._problem = connection, launch, problem
        self._sending = threading.Lock()
        self._controls: dict[str, RunControl] = {}
        self.jobs: queue.SimpleQueue[ArmJob] = queue.SimpleQueue()

    def add(self, job: ArmJob) -> None:
        self._controls[job.arm.name] = RunControl()
        self.jobs.put(job)

    def listen(self) -> NoReturn:
        while True:
            try:
                what, value = self._connection.recv()
            except (EOFError, OSError, TypeError):
                os._exit(0)  # the parent is gone, and another process may resume in this folder
            if what == "run":
                self.add(value)
            elif (control := self._controls.get(value[0])) is not None:
                control.stop(value[1], interrupted=True)

    def complete(self, job: ArmJob) -> None:
        self.execute(job)
        self.report(job, "ended", 0)

    def execute(self, job: ArmJob) -> None:
        self.report(job, "began", os.getpid())
        before = os.fstat(self._connection.fileno())
        control, problem = self._controls[job.arm.name], self._problem
        result = refuse(job, problem) if problem else portable(execute(job, self._launch, control))
        if result.status == "failed" and _device_is_lost():
            os._exit(_DEVICE_LOST)  # no arm of this process can continue
        if not os.path.samestat(before, os.fstat(self._connection.fileno())):  # the arm closed it
            raise OSError("the connection to the parent was closed")
        self.report(job, "result", result)

    def report(self, job: ArmJob, what: str, value: Any) -> None:
        with self._sending:
            self._connection.send((job.arm.name, what, value))


def _fork_for_each_arm(connection: Connection, arms: _Arms, launch: Launch) -> NoReturn:
    """Import once, then fork a process for each arm; no thread may run here."""
    adopt_orphans()  # so that processes which an arm leaves behind can be ended
    _import_arm_modules(launch)
    while True:
        try:
            what, job = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if what != "run":
            continue  # a stop for an arm that has ended
        child = os.fork()
        if child == 0:
            _execute_in_fork(arms, job)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end_leftovers(child)
        with suppress(OSError):
            arms.report(job, "ended", code)


def _execute_in_fork(arms: _Arms, job: ArmJob) -> NoReturn:
    """The life of a process with one arm."""
    # A fork that the arm's code has made and let continue comes out here as well.
    code, owner = 1, os.getpid()
    try:
        with suppress(OSError):
            # A group, so that the processes it starts can be ended with it.
            os.setpgid(0, 0)
        with suppress(OSError):  # if memory runs out, the kernel kills this process
            Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")
        arms.add(job)
        threading.Thread(target=arms.listen, daemon=True).start()
        arms.execute(job)
        code = 0
    except BaseException as error:
        if os.getpid() == owner:
            get_logger(__name__).error("the result of run '%s' could not be sent: %r", job.arm.name, error)
    # `os._exit` flushes nothing.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)  # even if the arm's threads are running


def _import_arm_modules(launch: Launch) -> None:
    """Import modules and build config models once instead of in every arm."""
    with suppress(Exception):  # the arm reports the problem
        deep_problems(launch.config)
        modules = ["evsys_sdk.data.transform", "evsys_sdk.inference.renderers.chat_template", "numpy.random"]
        if any(run.backend.kind == "mock" for run in launch.config.all_runs()):
            modules.append("evsys_sdk.backends.mock.client")
        for module in modules:
            import_module(module)


def _device_is_lost() -> bool:
    """Whether a CUDA error has made the GPU unusable in this process."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _pass_over(number: int, frame: Any) -> None:
    """Do nothing. With SIG_IGN, the programs that an arm starts would ignore the signal as well."""


if __name__ == "__main__":
    main(int(sys.argv[1]))
