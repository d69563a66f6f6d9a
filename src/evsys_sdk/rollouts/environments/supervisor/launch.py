"""Starting bwrap and finding out, beyond doubt, whether the sandbox runs."""

from __future__ import annotations

import os
import select
import time

from .limits import mount_storage
from .namespaces import Namespaces, check_isolation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Message

_READY = b"ready\n"
# PID 1 of the sandbox. The kernel shields it from signals from inside, except those that the shell catches, so it
# ignores these. `wait` also buries orphans, and starts again when someone kills the `sleep`.
_WAITING_PROCESS = (
    "trap '' HUP INT QUIT TERM; command -v sleep >/dev/null || exit 127; echo ready; "
    "while :; do sleep 2147483647 & wait; done"
)
_ISOLATION = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "sandbox", "--clearenv", "--new-session", "--die-with-parent", "--as-pid-1"),
)
_SIGKILL = 9


class LaunchError(Exception):
    """The sandbox could not be started."""


class Sandbox:
    """A running sandbox, entered by this process."""

    def __init__(self, bwrap_pid: int, init_pid: int) -> None:
        self.bwrap_pid = bwrap_pid
        self.init_pid = init_pid
        self.init_pidfd = os.pidfd_open(init_pid)
        self.namespaces = Namespaces(init_pid)
        self.shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"

    def destroy(self) -> None:
        """Kill everything in the sandbox and return when it is gone."""
        # Killing bwrap could leave its child behind; when the child, PID 1, dies, the kernel kills all the others.
        waiting = select.poll()
        waiting.register(self.init_pidfd, select.POLLIN)
        if not waiting.poll(0):
            os.kill(self.init_pid, _SIGKILL)
        # PID 1 stays until the processes that were started from here are buried, and bwrap ends after it.
        while _bury_a_child():
            pass


def _bury_a_child() -> bool:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def launch(settings: Message) -> Sandbox:
    """Start bwrap, wait until the process in it speaks, and join it."""
    if settings["uid"] is not None:
        _become(settings["uid"])
    bwrap = _Bwrap(settings)
    try:
        init_pid = bwrap.wait_until_ready(settings["start_timeout_s"])
        check_isolation(init_pid, bwrap.pid)
        sandbox = Sandbox(bwrap.pid, init_pid)
    except (LaunchError, OSError) as error:
        bwrap.kill()
        raise LaunchError(str(error)) from error
    try:
        mount_storage(settings["writable"], settings["disk"])
        os.makedirs(settings["workdir"], exist_ok=True)
    except OSError as error:
        sandbox.destroy()
        raise LaunchError(f"the writable folders could not be made: {error}") from error
    return sandbox


def _become(uid: int) -> None:
    """Stop being root: its files must not be the sandbox's files, and limits on processes do not bind it."""
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise LaunchError(f"cannot become the unprivileged user {uid}: {error}") from error


class _Bwrap:
    """The bwrap process before the sandbox is known to run."""

    def __init__(self, settings: Message) -> None:
        self._output, output = os.pipe()
        self._errors, errors = os.pipe()
        self._status, status = os.pipe()
        self._heard: dict[int, bytes] = {self._output: b"", self._errors: b"", self._status: b""}
        files: dict[int, str] = {_memory_file(content): path for path, content in settings["generated"].items()}
        self.pid = os.fork()
        if self.pid == 0:
            _exec_bwrap(settings, {1: output, 2: errors}, status, files)
        for descriptor in (output, errors, status, *files):
            os.close(descriptor)

    def wait_until_ready(self, timeout_s: float) -> int:
        """The PID of the sandbox's PID 1, once it has said that it runs."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        for descriptor in self._heard:
            poll.register(descriptor, select.POLLIN)
        open_ends = set(self._heard)
        while open_ends:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise LaunchError(f"bwrap was not ready after {timeout_s:g} s{self._said()}")
            for descriptor, _ in poll.poll(remaining * 1000):
                data = os.read(descriptor, 65536)
                self._heard[descriptor] += data
                if not data:
                    poll.unregister(descriptor)
                    open_ends.discard(descriptor)
            if self._heard[self._output].endswith(_READY):
                return self._child_pid()
        raise LaunchError(f"bwrap ended before the sandbox was ready{self._said()}")

    def kill(self) -> None:
        os.killpg(self.pid, _SIGKILL)
        os.waitpid(self.pid, 0)

    def _child_pid(self) -> int:
        # `{"child-pid": 12, ...}`; bwrap writes this before it starts anything.
        _, found, rest = self._heard[self._status].partition(b'"child-pid":')
        digits = rest.split(b",")[0].split(b"}")[0].strip()
        if not found or not digits.isdigit():
            raise LaunchError(f"bwrap did not say which process it started{self._said()}")
        return int(digits)

    def _said(self) -> str:
        text = self._heard[self._errors].decode("utf-8", "replace").strip()
        return f"; it said: {text}" if text else " and said nothing"


def _exec_bwrap(settings: Message, streams: dict[int, int], status: int, files: dict[int, str]) -> None:
    """Become bwrap; runs in the child."""
    try:
        os.setsid()
        for target, source in streams.items():
            os.dup2(source, target)
        for descriptor in (status, *files):
            os.set_inheritable(descriptor, True)
        user = str(settings["user"])
        arguments = [settings["bwrap"], *_ISOLATION, "--uid", user, "--gid", user, "--json-status-fd", str(status)]
        arguments += settings["mounts"]
        for descriptor, path in files.items():
            arguments += ["--perms", "0644", "--file", str(descriptor), path]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for folder in settings["writable"]:
            arguments += ["--dir", folder]
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
        os.execv(settings["bwrap"], [*arguments, "--", "/bin/sh", "-c", _WAITING_PROCESS])
    except OSError as error:
        os.write(2, f"{settings['bwrap']}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("file")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
