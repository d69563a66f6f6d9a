"""Processes inside the sandbox: shell commands, file readers and file writers."""

from __future__ import annotations

import errno
import os
import stat
import time

from .capture import Capture
from .libc import close_descriptors, keep_descriptors_from_programs, open_plain, restore_signals
from .processes import raise_command_oom_score

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from .launch import Sandbox
    from .wire import Message

_SIGKILL = 9
KILLED = 128 + _SIGKILL
_TIMED_OUT = 124
_CANNOT_RUN = 126
_CHUNK = 1 << 18


class Command:
    """One process in the sandbox, the leader of a process group, and its captured output."""

    def __init__(self, request: Message, body: Callable[[], NoReturn]) -> None:
        self.identifier = request["id"]
        self.deadline = time.monotonic() + request["timeout_s"]
        self.timed_out = False
        self.cancelled = False
        self.notes: list[str] = []
        limit = request["limit"]
        output, errors, problems = os.pipe(), os.pipe(), os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            for descriptor in (*output, *errors, *problems):
                os.close(descriptor)
            raise
        if self.pid == 0:
            _run_child(body, output[1], errors[1], problems[1])
        for read_end, write_end in (output, errors, problems):
            os.set_blocking(read_end, False)
            os.close(write_end)
        self.streams = {output[0]: Capture(limit), errors[0]: Capture(limit)}
        self._captures = tuple(self.streams.values())
        self._problems = problems[0]
        self.pidfd = os.pidfd_open(self.pid)

    def receive(self, descriptor: int) -> bool:
        """Read available output of a stream; return True at its end."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.streams[descriptor].add(data)
        return not data

    def kill(self) -> None:
        try:
            os.killpg(self.pid, _SIGKILL)
        except ProcessLookupError:  # the process group does not exist yet
            os.kill(self.pid, _SIGKILL)

    def finish(self) -> Message:
        """Reap the process and return its result."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        problem = os.read(self._problems, _CHUNK)  # does not block: only the ended process could write to it
        os.close(self._problems)
        if problem:
            return {"id": self.identifier, "problem": problem.decode("utf-8", "replace")}
        output, errors = self._captures
        return {
            "id": self.identifier,
            "stdout": output.value(),
            "stderr": errors.value(),
            "exit_code": _TIMED_OUT if self.timed_out else code if code >= 0 else 128 - code,
            "timed_out": self.timed_out,
            "notes": self.notes,
        }


def _run_child(body: Callable[[], NoReturn], output: int, errors: int, problems: int) -> None:
    try:
        os.setsid()
        restore_signals()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        body()
    except BaseException as error:  # reported separately from failures of the command
        os.write(problems, f"a process could not be set up: {error}".encode("utf-8", "replace"))
    finally:  # this fork must never continue as a second supervisor
        os._exit(_CANNOT_RUN)


def shell_command(sandbox: Sandbox, request: Message) -> Callable[[], NoReturn]:
    """Return a body that runs a shell command in the request's folder with its variables."""
    command, folder, variables = request["command"], request["cwd"], request["env"]
    env = dict(zip(variables[::2], variables[1::2], strict=True))

    def body() -> NoReturn:
        # The order matters: the host's /proc is not accessible inside, and
        # the filter blocks calls that the earlier steps need.
        raise_command_oom_score()
        sandbox.namespaces.enter()
        os.umask(0o022)
        try:
            os.chdir(folder)
        except OSError as error:
            os.write(2, f"cd: {folder}: {error.strerror}\n".encode("utf-8", "replace"))
            os._exit(_CANNOT_RUN)
        sandbox.limits.apply()
        keep_descriptors_from_programs()
        sandbox.system_calls.install()
        os.execve(sandbox.shell, [sandbox.shell.encode(), b"-c", command], env)

    return body


def file_reader(sandbox: Sandbox, request: Message) -> Callable[[], NoReturn]:
    """Return a body that prints a regular file; its exit code is 0 or the errno."""
    path, most = request["path"], request["limit"]

    def body() -> NoReturn:
        nonlocal most
        _enter_alone(sandbox)
        try:
            # Non-blocking, because an agent may have left a pipe without a writer at this path.
            descriptor = open_plain(path, os.O_RDONLY | os.O_NONBLOCK)
            _check_regular(descriptor)
            while chunk := os.read(descriptor, _CHUNK):
                most -= len(chunk)
                if most < 0:
                    os._exit(errno.EFBIG)
                _write_all(1, chunk)
        except OSError as error:
            os._exit(error.errno or errno.EIO)
        os._exit(0)

    return body


def file_writer(sandbox: Sandbox, request: Message) -> Callable[[], NoReturn]:
    """Return a body that writes a file and creates its parent folders; its exit code is 0 or the errno."""
    path, content = request["path"], request["data"]

    def body() -> NoReturn:
        _enter_alone(sandbox)
        os.umask(0o022)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Truncated only after the check that it is a regular file,
            # because O_TRUNC could affect other kinds of files.
            descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o644)
            _check_regular(descriptor)
            os.ftruncate(descriptor, 0)
            _write_all(descriptor, content)
            os.close(descriptor)
        except OSError as error:
            os._exit(error.errno or errno.EIO)
        os._exit(0)

    return body


def _enter_alone(sandbox: Sandbox) -> None:
    """Enter the sandbox and close the supervisor's descriptors, which are reachable through /proc otherwise."""
    sandbox.namespaces.enter()
    close_descriptors()


def _check_regular(descriptor: int) -> None:
    """Raise OSError unless the descriptor is a regular file outside of /proc."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_dev == os.stat("/proc").st_dev:
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, os.strerror(number))


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
