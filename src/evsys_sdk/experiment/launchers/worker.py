"""A process that executes one arm after the other, and the door through which this process talks to it.

It is started by module name, not forked: no threads, locks or event loops come along, and the script that started the
experiment is not run again. It ends when its parent does, because it then reads the end of their connection.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from ...errors import ConfigError, EvsysError, Problem
from ...log import redact_output
from ...protocols import RunResult
from ...training.callback import RunControl
from ..launcher import ArmJob, Launch, WorkerLost, execute, refuse
from ..project_code import ProjectCode
from ..result_json import portable

_FAREWELL_S = 10.0
_WORKER = "EVSYS_ARM_WORKER"
"""Set in the environment of workers: what is shown on a terminal must be lines there, not a live display."""


class WorkerProcess:
    """The parent's side: give it an arm, wait for the result."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process = process
        self._connection = connection
        self._sending = threading.Lock()

    @classmethod
    def start(cls, briefing: bytes, environment: dict[str, str]) -> WorkerProcess:
        """Start a process and tell it what all arms share, as `briefing_for` puts it."""
        try:
            ours, theirs = socket.socketpair()
            with ours, theirs:
                process = _started(theirs.fileno(), environment)
                worker = cls(process, Connection(ours.detach()))
        except OSError as error:
            raise WorkerLost(f"no process could be started for it: {error}") from None
        worker._send(briefing)
        return worker

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: ArmJob) -> RunResult:
        """Have an arm executed; a process that dies on the way raises `WorkerLost`."""
        self._send(pickle.dumps(("run", job)))
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None

    def stop(self, reason: str) -> None:
        with suppress(WorkerLost):
            self._send(pickle.dumps(("stop", reason)))

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Send it home; one that does not go is ended."""
        self.dismiss()
        try:
            self._process.wait(_FAREWELL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()

    def dismiss(self) -> None:
        """Let it read the end of the connection, which closing does not while a thread here waits for its result."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except OSError:
            raise self._lost() from None

    def _lost(self) -> WorkerLost:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_FAREWELL_S)
        code = self._process.returncode
        cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return WorkerLost(f"the process that trained it ended with {cause}")


def _started(descriptor: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A worker that finds modules where this process does, and prints where this process does."""
    command = [sys.executable, "-P", "-m", __spec__.name, str(descriptor)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    told = {**os.environ, **environment, _WORKER: "1", "PYTHONPATH": path}
    prints_to = 2 if sys.stdout is sys.stderr else None  # stdout is kept free for an answer in JSON
    return subprocess.Popen(command, env=told, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stdout=prints_to)


def briefing_for(launch: Launch) -> bytes:
    """What a worker is told; what cannot travel is refused with its name."""
    code = ProjectCode.of_this_process()
    if code.unreachable:
        hint = "Move them to a module of their own, or set launcher.params.arms_in to 'threads'."
        message = f"a process cannot import extensions registered in {', '.join(code.unreachable)}"
        raise ConfigError(Problem(message, path="launcher.params.arms_in", hint=hint))
    try:
        return pickle.dumps((code, launch, os.environ.get("PYTHONPATH")))
    except Exception as error:
        hint = "Register it and name it under callbacks, or set launcher.params.arms_in to 'threads'."
        raise ConfigError(Problem(f"a callback cannot be sent to a process: {error}", hint=hint)) from None


def main(descriptor: int) -> None:
    """The worker's side: execute arms until the parent is gone."""
    redact_output()
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; the parent decides what it means
        signal.signal(number, _pass_over)
    connection = Connection(descriptor)
    code, launch, python_path = pickle.loads(connection.recv_bytes())
    os.environ.pop("PYTHONPATH", None)  # it was for this process: another Python, in a sandbox, would stumble over it
    if python_path is not None:
        os.environ["PYTHONPATH"] = python_path
    inbox = _Inbox(connection)
    try:
        code.load()
        problem = None
    except EvsysError as error:
        problem = error
    while True:
        job, control = inbox.next_job()
        connection.send(portable(execute(job, launch, control)) if problem is None else refuse(job, problem))


def _pass_over(number: int, frame: Any) -> None:
    """Do nothing. Were the signal ignored, so would every program be that an arm starts, and `timeout` end none."""


class _Inbox:
    """Listens to the parent beside the arm that is being trained."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[tuple[ArmJob, RunControl]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def next_job(self) -> tuple[ArmJob, RunControl]:
        return self._jobs.get()

    def _listen(self) -> None:
        control = RunControl()
        while True:
            try:
                what, value = self._connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # nobody is left who would want the result, and someone may go on in this folder
            if what == "run":
                control = RunControl()
                self._jobs.put((value, control))
            else:
                control.stop(value, interrupted=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
