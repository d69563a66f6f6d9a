"""Run user code in a child process of the command, with limits of time and output.

The command line forks before it imports the first module of a project, an `--import` or an installed package. The child
continues with the command. The parent runs no user code: it enforces the limits, relays output and signals, and decides
the exit code. A child that ends without reporting an exit code has failed. Commands without user code start no process,
and neither do Python programs that use the SDK.

A `Containment` limits a whole command: its time without progress, and its output next to its results. `run` has none,
because each of its arms has a process with limits; its other calls are limited separately.

    with user_code("importing 'src'", limit_s=60):
        importlib.import_module("src")
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, NamedTuple, NoReturn

from .redact import redact_text

_EXIT_S = 5.0
"""Seconds for the child to exit after its command, for threads and exit handlers of user code."""
_MOST_OUTPUT = 1_000_000
"""Limit of the bytes that user code prints."""
_NO_PIDFD_POLL_S = 0.2
_PROGRESS_S = 0.5
"""Shortest interval between reports of progress."""
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def default_limit_s(usual: float = 60.0) -> float:
    """Time limit of a call of user code; the environment overrides the default."""
    return float(os.environ.get("EVSYS_USER_CODE_TIMEOUT_S", usual))


class Containment(NamedTuple):
    """Limits of a whole command, from its first import of user code."""

    what: str
    idle_s: float
    """Longest time without progress."""
    exit_code: int = 1


class _Child:
    """The child process: its reports to the parent, and the output of user code."""

    def __init__(self, reports: int, output: int) -> None:
        self.pid = os.getpid()
        self.reports, self.output = reports, output
        # Without a containment, progress goes to stderr; on a terminal it is drawn around the output.
        self.elsewhere = (output, output if _containment else 2) if _containment or not os.isatty(2) else (2, 2)
        """Descriptors of stdout and stderr while the command runs."""
        self.held: tuple[int, int] | None = os.dup(1), os.dup(2)
        """The original descriptors."""
        _point(*self.elsewhere)
        self.numbers = count()
        self.reported = 0.0
        self.code: int | None = None

    def report(self, **message: Any) -> None:
        import json

        # One write below PIPE_BUF bytes is atomic.
        with suppress(OSError):
            os.write(self.reports, json.dumps(message).encode("ascii")[:4000] + b"\n")

    def leave(self) -> None:
        """Exit at once after the exit handlers, because freeing all objects takes longer than most commands."""
        if self.code is not None and os.getpid() == self.pid:
            _flush()
            os._exit(self.code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


_print_error: Callable[[str], None] | None = None
_containment: Containment | None = None
_child: _Child | None = None


def isolate_user_code(print_error: Callable[[str], None], containment: Containment | None = None) -> None:
    """Fork before user code runs from now on; `print_error` prints errors of the parent."""
    global _print_error, _containment
    _print_error, _containment = print_error, containment


@contextmanager
def user_code(what: str, *, limit_s: float | None = None) -> Generator[None]:
    """Run user code, in a child of the command line; see `limit_user_code`."""
    _fork_once()
    with limit_user_code(what, limit_s=limit_s):
        yield


@contextmanager
def limit_user_code(what: str, *, limit_s: float | None = None, exit_code: int = 1) -> Generator[None]:
    """Limit a block that may call user code; without a child process, nothing is limited.

    `exit_code` is the command's exit code if the code ends its process or exceeds the limit. `SystemExit`, and in a
    child every other exception that is no `Exception`, is converted to `UserCodeError`.
    """
    child, pid = _child, os.getpid()
    number = next(child.numbers) if child else 0
    try:
        if child is None:
            yield
        else:
            child.report(begin=number, what=what[:500], limit_s=limit_s, code=exit_code)
            with _output_to(child.output):
                yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if child is None and not isinstance(error, SystemExit):
            raise
        from .errors import UserCodeError

        raise UserCodeError(f"{what}: raised {type(error).__name__}({error}). Raise an Exception instead.") from error
    finally:
        if os.getpid() not in (pid, _child.pid if _child else pid):  # a fork that user code made and did not end
            os._exit(1)
        if child:
            child.report(end=number)


def report_progress() -> None:
    """Report progress, which resets the idle time of a contained command."""
    if _child is not None and time.monotonic() - _child.reported > _PROGRESS_S:
        _child.reported = time.monotonic()
        _child.report(alive=True)


@contextmanager
def results() -> Generator[None]:
    """Print results inside this block: with user code, only these reach stdout."""
    child = _child
    if child is None or child.held is None or os.getpid() != child.pid:
        yield
        return
    descriptors, child.held = child.held, None
    _point(*descriptors)
    try:
        yield
    finally:
        _point(*child.elsewhere)
        child.held = descriptors


def release_output() -> None:
    """Restore stdout and stderr at the end of a command."""
    if _child is not None and _child.held is not None and os.getpid() == _child.pid:
        _point(*_child.held)
        _child.held = None


def report_exit(code: int) -> None:
    """Report the exit code; the process then has a short time to exit."""
    if _child is not None and os.getpid() == _child.pid:
        _flush()
        _child.code = code
        _child.report(exit=code)


def keep_process(pid: int) -> None:
    """Let a process outlive this command."""
    if _child is not None:
        _child.report(keep=pid)


@contextmanager
def _output_to(descriptor: int) -> Generator[None]:
    """Redirect stdout and stderr of the process to a descriptor."""
    originals = os.dup(1), os.dup(2)
    _point(descriptor, descriptor)
    try:
        yield
    finally:
        _point(*originals)
        for original in originals:
            os.close(original)


def _point(first: int, second: int) -> None:
    """Redirect stdout and stderr to other descriptors."""
    _flush()
    os.dup2(first, 1)
    os.dup2(second, 2)


def _fork_once() -> None:
    global _print_error, _child
    if _print_error is None or not hasattr(os, "fork"):
        return
    from .processes import adopt_orphans, die_with_parent  # imported here, because most commands do not need these

    print_error, _print_error = _print_error, None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reports, theirs = os.pipe()
    output, printed = os.pipe()
    parent = os.getpid()
    # Before the fork, so that no process of the child can escape.
    adopt_orphans()
    pid = os.fork()
    if pid:
        os.close(theirs)
        os.close(printed)
        _Parent(pid, reports, output, print_error, _containment).supervise()
    adopt_orphans(on=False)
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    os.close(reports)
    os.close(output)
    os.setpgid(0, 0)  # Ctrl-C reaches the parent only, which forwards it once
    if sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _child = _Child(theirs, printed)
    atexit.register(_child.leave)  # registered first, so it runs after all handlers of user code


class _Parent:
    """The parent process: runs no user code, and supervises the child."""

    def __init__(
        self, pid: int, reports: int, output: int, print_error: Callable[[str], None], containment: Containment | None
    ) -> None:
        from .processes import Relay

        self._pid, self._print_error = pid, print_error
        self._reports, self._output = reports, output
        self._pending = b""
        self._relay = Relay(_MOST_OUTPUT)
        self._sections: dict[int, dict[str, Any]] = {}
        if containment is not None:
            limits = {"what": containment.what, "limit_s": containment.idle_s, "code": containment.exit_code}
            self._sections[-1] = {**limits, "ends": time.monotonic() + containment.idle_s}
        self._kept: set[int] = set()
        self._code: int | None = None
        self._deadline: float | None = None
        """When a child that has reported its exit code is killed."""

    def supervise(self) -> NoReturn:
        import signal

        from .processes import end_leftovers

        for name in _FORWARDED:
            signal.signal(getattr(signal, name), lambda number, _: self._pass_on(number))
        signal.signal(signal.SIGTSTP, lambda number, _: self._pause())
        status, overdue = self._wait()
        end_leftovers(self._pid, keep=self._kept)
        code = self._code if self._code is not None else self._explain(status, overdue)
        _flush()
        os._exit(code)

    def _wait(self) -> tuple[int, dict[str, Any] | None]:
        """Relay output until the child ends; returns its wait status, and the section that exceeded its limit."""
        import select
        import signal

        try:
            gone = os.pidfd_open(self._pid)
        except (OSError, AttributeError):
            gone = None
        watched = [end for end in (self._reports, self._output, gone) if end is not None]
        overdue: dict[str, Any] | None = None
        while True:
            ready = select.select(watched, [], [], self._time_left(poll=gone is None))[0]
            for end in (self._reports, self._output):
                if end in ready and not self._read(end):
                    watched.remove(end)
            overdue = overdue or self._find_overdue()
            if overdue is not None or (self._deadline is not None and time.monotonic() > self._deadline):
                os.kill(self._pid, signal.SIGKILL)
            if gone in ready or gone is None or overdue is not None:
                ended, status = os.waitpid(self._pid, 0 if gone in ready or overdue is not None else os.WNOHANG)
                if ended:
                    break
        # The pipes may hold its last output, and processes that it left may keep them open.
        while ready := select.select([end for end in watched if end != gone], [], [], 0)[0]:
            watched = [end for end in watched if end not in ready or self._read(end)]
        self._relay.feed(b"")
        return status, overdue

    def _time_left(self, *, poll: bool) -> float | None:
        ends = [section["ends"] for section in self._sections.values() if section["ends"] is not None]
        ends += [self._deadline] if self._deadline is not None else []
        left = [max(0.0, min(ends) - time.monotonic())] if ends else []
        return min(left + ([_NO_PIDFD_POLL_S] if poll else []), default=None)

    def _find_overdue(self) -> dict[str, Any] | None:
        if self._code is not None:
            return None
        now = time.monotonic()
        limited = (section for section in self._sections.values() if section["ends"] is not None)
        return next((section for section in limited if section["ends"] <= now), None)

    def _read(self, end: int) -> bool:
        import json

        data = os.read(end, 1 << 16)
        if end == self._output:
            self._relay.feed(data)
        else:
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):
                    self._handle(json.loads(line))
        return bool(data)

    def _handle(self, message: dict[str, Any]) -> None:
        if (whole := self._sections.get(-1)) is not None:
            whole["ends"] = time.monotonic() + whole["limit_s"]
        if "begin" in message:
            limit = message["limit_s"]
            message["ends"] = None if limit is None else time.monotonic() + float(limit)
            self._sections[int(message["begin"])] = message
        elif "end" in message:
            self._sections.pop(int(message["end"]), None)
        elif "keep" in message:
            self._kept.add(int(message["keep"]))
        elif "exit" in message and not (
            message["exit"] == 0 and self._sections.keys() - {-1}
        ):  # not from inside user code
            self._code = int(message["exit"])
            self._deadline = time.monotonic() + _EXIT_S

    def _explain(self, status: int, overdue: dict[str, Any] | None) -> int:
        import signal

        section = overdue or next(reversed(self._sections.values()), None)
        what = section["what"] if section else "the process with the code of this project"
        code = os.waitstatus_to_exitcode(status)
        if overdue is not None:
            limit = f"{overdue['limit_s']:g}"
            remedy = "Correct the code, or allow more time with arm_timeout_s or EVSYS_USER_CODE_TIMEOUT_S"
            took = "made no progress for" if overdue is self._sections.get(-1) else "took longer than"
            self._print_error(redact_text(f"{what}: {took} {limit} s, and its process was ended. {remedy}."))
        elif code == -signal.SIGINT:
            return 130
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            remedy = "Look for os._exit, os.exec and crashes in that code"
            self._print_error(redact_text(f"{what}: its process {how} before the command was done. {remedy}."))
        return int(section["code"]) if section else 2

    def _pass_on(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _pause(self) -> None:
        """Ctrl-Z stops both; continuing this process continues the child."""
        import signal

        self._pass_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pass_on(signal.SIGCONT)
