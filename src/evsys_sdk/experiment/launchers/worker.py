"""The program of a worker: imports the project's code once and executes arms until its parent is gone.

An arm of built-ins is executed in the worker itself, which keeps what it has loaded for the next arm. An arm with code
of the user's own gets a fork of the worker: nothing it does to its process (exits, crashes, threads, forks, closed
files, another working folder) reaches another arm or the parent.
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
"""Exit code of a process whose GPU does not answer any more."""


def main(descriptor: int) -> None:
    """The worker's side: execute arms until the parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; the parent decides what it means
        signal.signal(number, _pass_over)
    connection = Connection(descriptor)
    code, launch, python_path, mode = pickle.loads(connection.recv_bytes())
    os.environ.pop("PYTHONPATH", None)  # it was for this process: another Python, in a sandbox, would stumble over it
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
    """Executes arms in this process, and hears the parent meanwhile."""

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
                os._exit(0)  # no one is left who would want the result, and someone may continue in this folder
            if what == "run":
                self.add(value)
            elif (control := self._controls.get(value[0])) is not None:
                control.stop(value[1], interrupted=True)

    def complete(self, job: ArmJob) -> None:
        self.execute(job)
        self.report(job, "ended", 0)

    def execute(self, job: ArmJob) -> None:
        self.report(job, "began", os.getpid())
        door = os.fstat(self._connection.fileno())
        control, problem = self._controls[job.arm.name], self._problem
        result = refuse(job, problem) if problem else portable(execute(job, self._launch, control))
        if result.status == "failed" and _device_is_lost():
            os._exit(_DEVICE_LOST)  # no arm of this process can continue
        if not os.path.samestat(door, os.fstat(self._connection.fileno())):  # closed by the arm, now another file's
            raise OSError("the connection to the parent was closed")
        self.report(job, "result", result)

    def report(self, job: ArmJob, what: str, value: Any) -> None:
        with self._sending:
            self._connection.send((job.arm.name, what, value))


def _fork_for_each_arm(connection: Connection, arms: _Arms, launch: Launch) -> NoReturn:
    """Import once, then be the parent of one process after the other; no thread may run here."""
    adopt_orphans()  # what an arm's own children leave behind becomes ours to end
    _import_what_arms_use(launch)
    while True:
        try:
            what, job = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if what != "run":
            continue  # the arm that was to stop has ended
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
            # Its own group, so that all that it starts can be ended with it.
            os.setpgid(0, 0)
        with suppress(OSError):  # if memory runs out, it is this process that has to go
            Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")
        arms.add(job)
        threading.Thread(target=arms.listen, daemon=True).start()
        arms.execute(job)
        code = 0
    except BaseException as error:
        if os.getpid() == owner:
            get_logger(__name__).error("the result of run '%s' did not arrive: %r", job.arm.name, error)
    # `os._exit` flushes nothing.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)  # whatever threads the arm has left


def _import_what_arms_use(launch: Launch) -> None:
    """So that it need not be imported, and models of configs need not be built, by every arm."""
    with suppress(Exception):  # problems are reported where they matter
        deep_problems(launch.config)
        modules = ["evsys_sdk.data.transform", "evsys_sdk.inference.renderers.chat_template", "numpy.random"]
        if any(run.backend.kind == "mock" for run in launch.config.all_runs()):
            modules.append("evsys_sdk.backends.mock.client")
        for module in modules:
            import_module(module)


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


def _pass_over(number: int, frame: Any) -> None:
    """Do nothing. Were the signal ignored, so would every program be that an arm starts, and `timeout` end none."""


if __name__ == "__main__":
    main(int(sys.argv[1]))
