"""Processes that execute arms, as the launcher sees them: started, given arms, limited in time and output, ended.

A worker is started by module name, not forked: no threads, locks or event loops come along, and the script that started
the experiment is not run again. It ends when its parent does, because it then reads the end of their connection.
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
"""How long a process that is to end is waited for."""
LOOK_UP_S = 0.2
"""How soon it is noticed that a worker is gone, or that its arm's time is over."""
_MOST_OUTPUT = 10_000_000
"""Bytes that one arm may print."""
type Mode = Literal["here", "threads", "forks"]
"""Whether a worker executes an arm itself, several at a time in threads, or each in a fork."""
_WORKER = "EVSYS_ARM_WORKER"
"""Set in the environment of workers: what is shown on a terminal must be lines there, not a live display."""


class ArmWorker:
    """Executes arms in a process, which is started when it is first needed, and again when it was lost."""

    def __init__(self, launch: Launch, briefing: bytes, environment: dict[str, str]) -> None:
        """`briefing` is what all arms share, as `write_briefing` puts it."""
        self._briefing, self._environment = briefing, environment
        self._limit_s = launch.config.arm_timeout_s
        self._process: _WorkerProcess | None = None
        self._starting = threading.Lock()

    def run(self, job: ArmJob) -> RunResult:
        """Have an arm executed within its time; a process that dies on the way, or has to be ended, is `WorkerLost`."""
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
        """End what it executes, everything that has started, and the process."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


@dataclass(slots=True)
class _Awaited:
    """An arm that is being executed, or the import of the project's code."""

    future: Future[RunResult] = field(default_factory=Future[RunResult])
    result: RunResult | None = None
    """Kept until the arm is reported as ended: only then has all that it left behind been ended as well."""
    pid: int | None = None
    """The process that executes it: the worker, or a fork of it."""
    limit_s: float | None = None
    limit: str = ""
    """The limit that it has when it is reported as begun, in words."""
    ends_at: float = math.inf
    is_overdue: bool = False


class _WorkerProcess:
    """The parent's side of one process: a thread hears what it reports, and ends what takes too long."""

    def __init__(self, briefing: bytes, environment: dict[str, str]) -> None:
        try:
            ours, theirs = socket.socketpair()
            # The worker's side must not stay open here: when it dies, its end would never be read.
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
        """Whether it can be given another arm."""
        # An arm that is killed while it reads a request to stop leaves half of it to the next.
        return not self._is_lost and self._process.poll() is None and not (self._was_stopped and not self._arms)

    def run(self, job: ArmJob, limit_s: float | None) -> RunResult:
        """Have an arm executed within a time; a process that dies on the way, or has to be ended, is `WorkerLost`."""
        one = self._arms[job.arm.name] = _Awaited(limit_s=limit_s)
        self._relay.allow(f"run '{job.arm.name}'")
        try:
            # Absolute, because user code may change the working folder of its process.
            self._send(pickle.dumps(("run", replace(job, run_dir=job.run_dir.absolute()))))
        except WorkerLost:
            self._arms.pop(job.arm.name, None)
            raise
        if self._is_lost and self._arms.pop(job.arm.name, None):  # no one hears any more
            raise self._lost(one, None)
        return one.future.result()

    def stop(self, arm: str, reason: str) -> None:
        self._was_stopped = True
        with suppress(WorkerLost):
            self._send(pickle.dumps(("stop", (arm, reason))))

    def kill(self) -> None:
        self._is_lost = True
        arms = [one.pid for one in self._arms.values() if one.pid is not None]
        for pid in (*arms, self._process.pid):
            kill_group(pid)
        for pid in arms:
            wait_for_end(pid, _TEARDOWN_S)

    def close(self) -> None:
        """Let it read the end of the connection and exit; kill it if it does not, or if an arm is still awaited."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)
        if self._arms or self._is_lost:
            self.kill()
        try:
            self._process.wait(_TEARDOWN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._listener.join()  # it must not read what may be another file by then
        self._connection.close()
        self._relaying.join(LOOK_UP_S)  # a process that an arm has left may hold the other end

    def _listen(self) -> None:
        try:
            while True:
                if self._connection.poll(LOOK_UP_S):
                    self._hear(*self._connection.recv())
                # Asked again: it may have sent its result and ended since.
                elif self._process.poll() is not None and not self._connection.poll():
                    break  # its children may keep the connection open, so that its end is never read
                self._end_overdue()
        except (EOFError, OSError, TypeError, ValueError, pickle.UnpicklingError):
            pass
        self._is_lost = True
        while self._arms:
            one = self._arms.popitem()[1]
            one.future.set_exception(self._lost(one, None))

    def _hear(self, arm: str, what: str, value: Any) -> None:
        if what == "imports":
            limit = f"importing the project's code took longer than {default_limit_s():g} s"
            self._imports = _Awaited(pid=value, limit=limit, ends_at=time.monotonic() + default_limit_s())
            return
        self._imports.ends_at = math.inf
        if (one := self._arms.get(arm)) is None:
            return
        if what == "began":
            one.pid = value
            if one.limit_s is not None:
                # From here on, not from when it was sent: what a new worker imports first is not the arm's time.
                one.limit, one.ends_at = timeout_reason(one.limit_s), time.monotonic() + kill_after_s(one.limit_s)
        elif what == "result":
            one.result = value
        else:
            del self._arms[arm]
            if one.result is not None:
                one.future.set_result(one.result)
            else:
                one.future.set_exception(self._lost(one, value))

    def _end_overdue(self) -> None:
        for one in (self._imports, *list(self._arms.values())):
            if one.pid is not None and time.monotonic() > one.ends_at:
                one.is_overdue = True
                kill_group(one.pid)

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except OSError:
            self._is_lost = True
            raise self._lost(_Awaited(), None) from None

    def _lost(self, arm: _Awaited, code: int | None) -> WorkerLost:
        """Why there is no result: a limit was exceeded, or its process ended, with `code` where that is known."""
        if overdue := next((one for one in (arm, self._imports) if one.is_overdue), None):
            return WorkerLost(f"{overdue.limit} and did not stop, so its process was ended.", final=True)
        if code is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TEARDOWN_S)
            code = self._process.returncode
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return WorkerLost(f"the process that trained it ended with {cause}")


def _start_process(descriptor: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A worker that finds modules where this process does; what it prints goes to this process."""
    # -P: without the working folder in front of everything else, where a file may have the name of a module.
    command = [sys.executable, "-P", "-m", f"{__package__}.worker", str(descriptor)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    stated = {**os.environ, **environment, _WORKER: "1", "PYTHONPATH": path}
    return subprocess.Popen(
        command,
        env=stated,
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # so that what an arm leaves behind can be ended with it
    )


def write_briefing(launch: Launch, mode: Mode) -> bytes:
    """Settings of a worker; what cannot be pickled is refused with its name."""
    code = ProjectCode.for_workers(launch.config)
    if code.unreachable:
        hint = "Move them to a module of their own, or set launcher.params.arms_in to 'threads'."
        message = f"a process cannot import extensions registered in {', '.join(code.unreachable)}"
        raise ConfigError(Problem(message, path="launcher.params.arms_in", hint=hint))
    try:
        return pickle.dumps((code, launch, os.environ.get("PYTHONPATH"), mode))
    except Exception as error:
        hint = "Register it and name it under callbacks, or set launcher.params.arms_in to 'threads'."
        raise ConfigError(Problem(f"a callback cannot be sent to a process: {error}", hint=hint)) from None
