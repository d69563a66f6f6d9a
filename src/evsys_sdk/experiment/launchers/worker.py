"""Processes that execute arms, and the door through which this process talks to them.

A worker is started by module name, not forked: no threads, locks or event loops come along, and the script that started
the experiment is not run again. It imports the project's code once. An arm of built-ins is executed in the worker
itself, which keeps what it has loaded for the next arm. An arm with code of the user's own gets a fork of the worker:
nothing it does to its process (exits, crashes, threads, forks, closed files, another working folder) reaches another
arm or this process. A worker ends when its parent does, because it then reads the end of their connection.
"""

from __future__ import annotations

import math
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, NoReturn

from ...config.checks.deep import deep_problems
from ...errors import ConfigError, EvsysError, Problem
from ...log import get_logger
from ...protocols import RunResult
from ...redact import redact_text
from ...training.callback import RunControl
from ...user_code import adopt_orphans, default_limit_s, end_leftovers
from ..arms.project_code import ProjectCode
from ..arms.results import portable
from ..launcher import ArmJob, Launch, WorkerLost, execute, kill_after_s, refuse, timeout_reason

_TEARDOWN_S = 10.0
"""How long a process that is to end is waited for."""
LOOK_UP_S = 0.2
"""How soon it is noticed that a worker is gone, or that its arm's time is over."""
_MOST_OUTPUT = 10_000_000
"""Bytes that one arm may print."""
_LONGEST_LINE = 100_000
_WORKER = "EVSYS_ARM_WORKER"
"""Set in the environment of workers: what is shown on a terminal must be lines there, not a live display."""


class WorkerProcess:
    """The parent's side: give it an arm, wait for the result."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process = process
        self._printed = _Printed(process)
        self._connection = connection
        self._sending = threading.Lock()
        self._arm: int | None = None
        """The process that executes an arm at the moment: this worker, or a fork of it."""
        self._is_busy = False
        """Whether a result is awaited, also of an arm whose process has not said yet that it began."""
        self.is_sound = True
        """Whether it can be given another arm."""

    @classmethod
    def start(cls, briefing: bytes, environment: dict[str, str]) -> WorkerProcess:
        """Start a process and tell it what all arms share, as `write_briefing` puts it."""
        try:
            ours, theirs = socket.socketpair()
            # The worker's side must not stay open here: when it dies, its end would never be read.
            with ours, theirs:
                process = _start_process(theirs.fileno(), environment)
                worker = cls(process, Connection(ours.detach()))
        except OSError as error:
            raise WorkerLost(f"no process could be started for it: {error}") from None
        worker._send(briefing)
        return worker

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: ArmJob, limit_s: float | None) -> RunResult:
        """Have an arm executed within a time; a process that dies on the way, or has to be ended, is `WorkerLost`."""
        # Absolute, because code of the user's own may change the working folder of its process.
        self._send(pickle.dumps(("run", replace(job, run_dir=job.run_dir.absolute()))))
        result, ends_at, limit, overdue = None, math.inf, "", False
        self._is_busy = True
        self._printed.allow(job.arm.name)
        try:
            while True:
                if not self._connection.poll(LOOK_UP_S):
                    if overdue := overdue or time.monotonic() > ends_at:
                        self._kill_arm()  # of an arm, or what imports the code for all of them
                    # Asked again: it may have sent its result and ended since.
                    if not self.is_alive and not self._connection.poll():
                        raise EOFError  # its children may keep the connection open, so that its end is never read
                    continue
                what, value = self._connection.recv()
                if what == "imports":
                    self._arm, ends_at = value, time.monotonic() + default_limit_s()
                    limit = f"importing the project's code took longer than {default_limit_s():g} s"
                elif what == "began":
                    self._arm, limit = value, "" if limit_s is None else timeout_reason(limit_s)
                    # From here on, not from when it was sent: what a new worker imports first is not the arm's time.
                    ends_at = math.inf if limit_s is None else time.monotonic() + kill_after_s(limit_s)
                elif what == "result":
                    # Kept until the worker says `ended`: only then has all that the arm left behind been ended as well.
                    result = value
                elif result is not None:
                    return result
                else:
                    raise self._lost(value, limit if overdue else "")
        except (EOFError, OSError, pickle.UnpicklingError):
            self.is_sound = False
            raise self._lost(None, limit if overdue else "") from None
        finally:
            self._arm, self._is_busy = None, False

    def _kill_arm(self) -> None:
        if self._arm is None:
            return
        for end in (os.killpg, os.kill):  # it may have left its group
            with suppress(ProcessLookupError, PermissionError):
                end(self._arm, signal.SIGKILL)

    def stop(self, reason: str) -> None:
        self.is_sound = False  # an arm that is killed while it reads this leaves half of it to the next
        with suppress(WorkerLost):
            self._send(pickle.dumps(("stop", reason)))

    def kill(self) -> None:
        """End the arm, everything it has started, and the worker."""
        arm, self.is_sound = self._arm, False
        self._kill_arm()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if arm is not None:
            _wait_for_end(arm)

    def close(self) -> None:
        """Send it home; one that does not go is ended."""
        self.dismiss()
        try:
            self._process.wait(_TEARDOWN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._connection.close()
        self._printed.close()

    def dismiss(self) -> None:
        """Let it read the end of the connection, which closing does not while a thread here waits for its result."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)
        if self._is_busy:  # nobody wants its result any more
            self.kill()

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except OSError:
            self.is_sound = False
            raise self._lost(None, "") from None

    def _lost(self, code: int | None, limit: str) -> WorkerLost:
        """Why there is no result: a limit was exceeded, or its process ended, with `code` where that is known."""
        if limit:
            return WorkerLost(f"{limit} and did not stop, so its process was ended.", final=True)
        if code is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TEARDOWN_S)
            code = self._process.returncode
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return WorkerLost(f"the process that trained it ended with {cause}")


class _Printed:
    """What a worker and its arms print: without secrets, line by line, up to a limit for each arm."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._arm, self._left = "", _MOST_OUTPUT
        # `sys.stdout` is asked for at each line: it leads to stderr while stdout is kept free for an answer in JSON.
        pairs = ((process.stdout, "stdout"), (process.stderr, "stderr"))
        self._threads = [threading.Thread(target=self._relay, args=pair, daemon=True) for pair in pairs]
        for thread in self._threads:
            thread.start()

    def allow(self, arm: str) -> None:
        self._arm, self._left = arm, _MOST_OUTPUT

    def close(self) -> None:
        for thread in self._threads:  # a process that an arm has left may hold the other end
            thread.join(LOOK_UP_S)

    def _relay(self, lines: IO[bytes], name: str) -> None:
        with lines:
            while line := lines.readline(_LONGEST_LINE):
                room, self._left = self._left, self._left - len(line)
                if room <= 0:
                    continue
                text = redact_text(line.decode("utf-8", "replace"))
                if self._left <= 0:
                    text += f"\nrun '{self._arm}' printed more than {_MOST_OUTPUT} bytes; the rest is not shown.\n"
                with suppress(OSError, ValueError):
                    stream = getattr(sys, name)
                    stream.write(text)
                    stream.flush()


def _wait_for_end(pid: int) -> None:
    """Wait until a process that was killed is dead, so that it holds no lock any more; it need not be our child."""
    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], _TEARDOWN_S)
        finally:
            os.close(descriptor)


def _start_process(descriptor: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A worker that finds modules where this process does, and prints where this process does."""
    # -P: without the working folder in front of everything else, where a file may have the name of a module.
    command = [sys.executable, "-P", "-m", __spec__.name, str(descriptor)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    told = {**os.environ, **environment, _WORKER: "1", "PYTHONPATH": path}
    return subprocess.Popen(
        command,
        env=told,
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,  # so that what an arm leaves behind can be ended with it
    )


def write_briefing(launch: Launch, *, fork: bool, shared: bool = False) -> bytes:
    """What a worker is told; what cannot travel is refused with its name.

    With `fork`, each arm gets a process; with `shared`, several arms run at a time.
    """
    code = ProjectCode.for_workers(launch.config)
    if code.unreachable:
        hint = "Move them to a module of their own, or set launcher.params.arms_in to 'threads'."
        message = f"a process cannot import extensions registered in {', '.join(code.unreachable)}"
        raise ConfigError(Problem(message, path="launcher.params.arms_in", hint=hint))
    try:
        return pickle.dumps((code, launch, os.environ.get("PYTHONPATH"), fork, shared))
    except Exception as error:
        hint = "Register it and name it under callbacks, or set launcher.params.arms_in to 'threads'."
        raise ConfigError(Problem(f"a callback cannot be sent to a process: {error}", hint=hint)) from None


def main(descriptor: int) -> None:
    """The worker's side: execute arms until the parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; the parent decides what it means
        signal.signal(number, _pass_over)
    connection = Connection(descriptor)
    code, launch, python_path, fork, shared = pickle.loads(connection.recv_bytes())
    os.environ.pop("PYTHONPATH", None)  # it was for this process: another Python, in a sandbox, would stumble over it
    if python_path is not None:
        os.environ["PYTHONPATH"] = python_path
    try:
        connection.send(("imports", os.getpid()))
        code.load()
        problem = None
    except EvsysError as error:
        problem = error
    if shared:
        from .shared import share  # which needs this module

        share(connection, launch, problem)
    if fork:
        _fork_for_each_arm(connection, launch, problem)
    inbox = _Inbox(connection)
    while True:
        _execute_here(connection, launch, problem, *inbox.next_job())
        connection.send(("ended", 0))


def _execute_here(
    connection: Connection, launch: Launch, problem: EvsysError | None, job: ArmJob, control: RunControl
) -> None:
    connection.send(("began", os.getpid()))
    door = os.fstat(connection.fileno())
    result = portable(execute(job, launch, control)) if problem is None else refuse(job, problem)
    if not os.path.samestat(door, os.fstat(connection.fileno())):  # closed by the arm, and now another file's
        raise OSError("the connection to the parent was closed")
    connection.send(("result", result))


def _fork_for_each_arm(connection: Connection, launch: Launch, problem: EvsysError | None) -> NoReturn:
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
            _execute_in_fork(connection, launch, problem, job)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end_leftovers(child)
        try:
            connection.send(("ended", code))
        except OSError:
            os._exit(0)


def _execute_in_fork(connection: Connection, launch: Launch, problem: EvsysError | None, job: ArmJob) -> NoReturn:
    """The life of a process with one arm."""
    # A fork that the arm's code has made and let go on comes out here as well.
    code, owner = 1, os.getpid()
    try:
        with suppress(OSError):
            # A group of its own, so that all that it starts can be ended with it.
            os.setpgid(0, 0)
        with suppress(OSError):  # if memory runs out, it is this process that has to go
            Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")
        inbox = _Inbox(connection)
        inbox.put(job)
        _execute_here(connection, launch, problem, *inbox.next_job())
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
    with suppress(Exception):  # whatever is wrong is said where it matters
        deep_problems(launch.config)
        modules = ["evsys_sdk.data.transform", "evsys_sdk.inference.renderers.chat_template", "numpy.random"]
        if any(run.backend.kind == "mock" for run in launch.config.all_runs()):
            modules.append("evsys_sdk.backends.mock.client")
        for module in modules:
            import_module(module)


def _pass_over(number: int, frame: Any) -> None:
    """Do nothing. Were the signal ignored, so would every program be that an arm starts, and `timeout` end none."""


class _Inbox:
    """Listens to the parent beside the arm that is being trained."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._control = RunControl()
        self._jobs: queue.SimpleQueue[tuple[ArmJob, RunControl]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def put(self, job: ArmJob) -> None:
        self._control = RunControl()
        self._jobs.put((job, self._control))

    def next_job(self) -> tuple[ArmJob, RunControl]:
        return self._jobs.get()

    def _listen(self) -> None:
        while True:
            try:
                what, value = self._connection.recv()
            except (EOFError, OSError, TypeError):
                os._exit(0)  # nobody is left who would want the result, and someone may go on in this folder
            if what == "run":
                self.put(value)
            else:
                self._control.stop(value, interrupted=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
