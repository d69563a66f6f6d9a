"""The launcher's side of worker processes: start them, send arms, limit time and output, end them.

A worker is started by module name instead of forked, so that it inherits no threads, locks or event loops and does not
run the user's script again. It ends with its parent, because their connection closes.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, Literal

from ...errors import ConfigError, Problem
from ...processes import Relay, kill_group, pass_on, wait_for_end
from ...protocols import RunResult
from ...user_code import default_limit_s
from ..arms.project_code import ProjectCode
from ..launcher import ArmJob, Launch, WorkerLost, kill_after_s, timeout_reason

_TEARDOWN_S = 10.0
"""Longest wait for a process to end."""
LOOK_UP_S = 0.2
"""Seconds between checks whether a worker is gone or its arm is over its time limit."""
_MOST_OUTPUT = 10_000_000
"""Most bytes that one arm may print."""
type Mode = Literal["here", "threads", "forks"]
"""Whether a worker executes an arm itself, several at a time in threads, or each in a fork."""
_WORKER = "EVSYS_ARM_WORKER"
"""Set in the environment of workers, which print lines instead of a live display."""


class ArmWorker:
    """Executes arms in a process that is started on first use, and again after a loss."""

    def __init__(self, launch: Launch, briefing: bytes, environment: dict[str, str]) -> None:
        """`briefing` holds the settings of all arms, from `write_briefing`."""
        self._briefing, self._environment = briefing, environment
        self._limit_s = launch.config.arm_timeout_s
        self._process: _WorkerProcess | None = None
        self._starting = threading.Lock()

    def run(self, job: ArmJob) -> RunResult:
        """Execute an arm within its time limit; raises `WorkerLost` if the process dies or is killed."""
        with self._starting:
            if self._process is None or not self._process.is_sound:
                self.close()
                self._process = _WorkerProcess(self._briefing, self._environment)
            process = self._process
        return process.run(job, self._limit_s)

    def stop(self, arm: str, reason: str) -> None:
        if self._process is not None:
            self._process.stop(arm, reason)

    def kill(self) -> None:
        """End the process, its arms and their processes."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


@dataclass(slots=True)
class _Awaited:
    """A running arm, or the import of the project's code."""

    future: Future[RunResult] = field(default_factory=Future[RunResult])
    result: RunResult | None = None
    """Kept until the worker reports the end, when the processes that the arm left behind have ended too."""
    pid: int | None = None
    """The process that executes it: the worker or a fork of it."""
    limit_s: float | None = None
    limit: str = ""
    """The time limit, in words."""
    ends_at: float = math.inf
    is_overdue: bool = False


class _WorkerProcess:
    """The parent's side of one process: a thread reads its messages and kills arms over their limit."""

    def __init__(self, briefing: bytes, environment: dict[str, str]) -> None:
        try:
            ours, theirs = socket.socketpair()
            # The worker's side is closed here, so that its death closes the connection.
            with ours, theirs:
                self._process = _start_process(theirs.fileno(), environment)
                self._connection = Connection(ours.detach())
        except OSError as error:
            raise WorkerLost(f"no process could be started for it: {error}") from None
        self._sending = threading.Lock()
        self._arms: dict[str, _Awaited] = {}
        self._imports = _Awaited()
        self._was_stopped = self._is_lost = False
        self._relay = Relay(_MOST_OUTPUT)
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            self._relaying = pass_on(pipe.fileno(), self._relay)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._send(briefing)

    @property
    def is_sound(self) -> bool:
        """Whether it can execute another arm."""
        # An arm that was killed while it read a stop message may have left half of it for the next arm.
        return not self._is_lost and self._process.poll() is None and not (self._was_stopped and not self._arms)

    def run(self, job: ArmJob, limit_s: float | None) -> RunResult:
        """Execute an arm within a time limit; raises `WorkerLost` if the process dies or is killed."""
        arm = self._arms[job.arm.name] = _Awaited(limit_s=limit_s)
        self._relay.allow(f"run '{job.arm.name}'")
        try:
            # Absolute, because user code may change the working folder of its process.
            self._send(pickle.dumps(("run", replace(job, run_dir=job.run_dir.absolute()))))
        except WorkerLost:
            self._arms.pop(job.arm.name, None)
            raise
        if self._is_lost and self._arms.pop(job.arm.name, None):  # the listener has ended
            raise self._lost(arm, None)
        return arm.future.result()

    def stop(self, arm: str, reason: str) -> None:
        self._was_stopped = True
        with suppress(WorkerLost):
            self._send(pickle.dumps(("stop", (arm, reason))))

    def kill(self) -> None:
        self._is_lost = True
        pids = [arm.pid for arm in self._arms.values() if arm.pid is not None]
        for pid in (*pids, self._process.pid):
            kill_group(pid)
        for pid in pids:
            wait_for_end(pid, _TEARDOWN_S)

    def close(self) -> None:
        """Close the connection, which ends the worker; kill it if an arm is running or it does not end."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)
        if self._arms or self._is_lost:
            self.kill()
        try:
            self._process.wait(_TEARDOWN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._listener.join()  # before the descriptor is closed and used for another file
        self._connection.close()
        self._relaying.join(LOOK_UP_S)  # a process that an arm left behind may keep the pipe open

    def _listen(self) -> None:
        try:
            while True:
                if self._connection.poll(LOOK_UP_S):
                    self._receive(*self._connection.recv())
                # Poll again: the result may have arrived before the process ended.
                elif self._process.poll() is not None and not self._connection.poll():
                    break  # its children may keep the connection open
                self._end_overdue()
        except (EOFError, OSError, TypeError, ValueError, pickle.UnpicklingError):
            pass
        self._is_lost = True
        while self._arms:
            arm = self._arms.popitem()[1]
            arm.future.set_exception(self._lost(arm, None))

    def _receive(self, name: str, what: str, value: Any) -> None:
        if what == "imports":
            limit = f"importing the project's code took longer than {default_limit_s():g} s"
            self._imports = _Awaited(pid=value, limit=limit, ends_at=time.monotonic() + default_limit_s())
            return
        self._imports.ends_at = math.inf
        if (arm := self._arms.get(name)) is None:
            return
        if what == "began":
            arm.pid = value
            if arm.limit_s is not None:
                # The clock starts now: the imports of a new worker are not the arm's time.
                arm.limit, arm.ends_at = timeout_reason(arm.limit_s), time.monotonic() + kill_after_s(arm.limit_s)
        elif what == "result":
            arm.result = value
        else:
            del self._arms[name]
            if arm.result is not None:
                arm.future.set_result(arm.result)
            else:
                arm.future.set_exception(self._lost(arm, value))

    def _end_overdue(self) -> None:
        for arm in (self._imports, *list(self._arms.values())):
            if arm.pid is not None and time.monotonic() > arm.ends_at:
                arm.is_overdue = True
                kill_group(arm.pid)

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except OSError:
            self._is_lost = True
            raise self._lost(_Awaited(), None) from None

    def _lost(self, arm: _Awaited, code: int | None) -> WorkerLost:
        """The reason of a loss: a time limit, or the exit code or signal of the process."""
        if overdue := next((limited for limited in (arm, self._imports) if limited.is_overdue), None):
            return WorkerLost(f"{overdue.limit} and did not stop, so its process was ended.", final=True)
        if code is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TEARDOWN_S)
            code = self._process.returncode
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return WorkerLost(f"the process that trained it ended with {cause}")


def _start_process(descriptor: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker with the module paths of this process, which receives its output."""
    # -P: a file in the working folder must not hide a module of the same name.
    command = [sys.executable, "-P", "-m", f"{__package__}.worker", str(descriptor)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        command,
        env={**os.environ, **environment, _WORKER: "1", "PYTHONPATH": path},
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # so that the processes of its arms can be ended with it
    )


def write_briefing(launch: Launch, mode: Mode) -> bytes:
    """The pickled settings of a worker; an error names what cannot be pickled."""
    code = ProjectCode.for_workers(launch.config)
    if code.unreachable:
        hint = "Move them to a separate module, or set launcher.params.arms_in to 'threads'."
        message = f"a process cannot import extensions registered in {', '.join(code.unreachable)}"
        raise ConfigError(Problem(message, path="launcher.params.arms_in", hint=hint))
    try:
        return pickle.dumps((code, launch, os.environ.get("PYTHONPATH"), mode))
    except Exception as error:
        hint = "Register it and name it under callbacks, or set launcher.params.arms_in to 'threads'."
        raise ConfigError(Problem(f"a callback cannot be sent to a process: {error}", hint=hint)) from None
