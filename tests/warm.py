"""Run `evsys` commands in forks of a process that has imported the package.

A command has its own process, session, descriptors, folder and environment, as one that a shell starts. What it saves
are the imports, a third of the processor time of most commands. Tests of start-up and hash seeds start a real one.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PRELOAD = (
    *("cli.main", "cli.record", "cli.experiment.run"),
    *("algorithms.sft", "backends.mock.backend", "backends.mock.client"),
    *("data.transforms.to_chat", "eval.verifiers.text_match", "rollouts.agents.chat"),
    *("experiment.arms.scheduler", "experiment.audit.audit", "experiment.claims", "experiment.conclusion"),
    *("experiment.contamination", "experiment.experiment", "experiment.launchers.local", "experiment.preflight"),
    *("history.attention", "history.detail", "history.index", "observers.alerts", "observers.callbacks.local_logger"),
)
_LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Command:
    """A started command. The next one starts after `wait` has returned."""

    pid: int
    server: socket.socket

    @property
    def ended(self) -> bool:
        return bool(select.select([self.server], [], [], 0)[0])

    def kill(self) -> None:
        """Kill its process, not the processes that it started."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The exit code, negative for a signal; raises `TimeoutError` if the command does not end."""
        try:
            return _receive(self.server, "code")
        except TimeoutError:
            os.killpg(self.pid, signal.SIGKILL)
            raise


def start_evsys(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None, out: int, err: int
) -> Command:
    """Start `evsys ARGUMENTS` in a folder; it writes to the descriptors `out` and `err`."""
    request = [str(folder), {**os.environ, **(environment or {})}, arguments]
    server = _start_server()
    socket.send_fds(server, [json.dumps(request).encode()], [out, err])
    return Command(_receive(server, "pid"), server)


def run_evsys(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`evsys ARGUMENTS` in a folder, with standard output and error; raises `TimeoutError` if it does not end."""
    out, err = os.pipe(), os.pipe()
    command = start_evsys(folder, *arguments, environment=environment, out=out[1], err=err[1])
    os.close(out[1])
    os.close(err[1])
    with ThreadPoolExecutor(2) as pool:
        printed = [pool.submit(_read, end[0]) for end in (out, err)]
        code = command.wait()
        stdout, stderr = (text.result() for text in printed)
    return subprocess.CompletedProcess(arguments, code, stdout, stderr)


def _receive(server: socket.socket, name: str) -> int:
    received, number = server.recv(30).decode().split()
    assert received == name, "the last command was not waited for"
    return int(number)


def _read(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        return file.read()


@cache
def _start_server() -> socket.socket:
    """Start the process that forks; it ends when this one closes its socket."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(there.fileno())]
    server = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    there.close()
    here.settimeout(_LIMIT_S)
    atexit.register(lambda: (here.close(), server.wait()))
    return here


def _serve(client: socket.socket) -> None:
    import importlib

    for name in _PRELOAD:
        importlib.import_module(f"evsys_sdk.{name}")
    while True:
        request, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 2)
        if not request:
            return
        if (pid := os.fork()) == 0:
            client.close()
            _become(descriptors, *json.loads(request))
        for descriptor in descriptors:
            os.close(descriptor)
        client.send(f"pid {pid}".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        client.send(f"code {code}".encode())


def _become(descriptors: list[int], folder: str, environment: dict[str, str], arguments: list[str]) -> None:
    """Continue as `python -m evsys_sdk ARGUMENTS`."""
    from evsys_sdk.cli.main import main

    os.setsid()
    for number, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["evsys", *arguments]
    sys.path[0] = folder
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.exit(main())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
