"""Start bwrap, verify that it has built an isolated sandbox, and join its namespaces."""

from __future__ import annotations

import fcntl
import os
import select
import time

from .generation import Maker
from .libc import drop_bounding_set, keep_descriptors_from_programs
from .processes import socket_buffer
from .settings import ProcessLimits, limit_network_buffers, mount_storage

# Join the namespaces of bwrap, and drop the privileges that this grants.

_NS_GET_USERNS = 0xB701
_ISOLATED = ("user", "mnt", "pid", "net", "ipc", "uts")
_JOINED = ("uts", "net", "mnt")  # mnt last, because it changes /proc


def check_isolation(pid: int, parent: int) -> None:
    """Raise OSError if `parent` did not start the process, or if it shares a namespace with this process."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        if f"PPid:\t{parent}\n" not in file:
            raise OSError(f"bwrap named a process that it did not start ({pid})")
    shared = [kind for kind in _ISOLATED if _namespace(pid, kind) == _namespace("self", kind)]
    if shared:
        raise OSError(f"bwrap started a process that is not isolated: it shares the namespaces {', '.join(shared)}")


def _namespace(pid: int | str, kind: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


class Namespaces:
    """The namespaces of the process `pid`; `__init__` joins mount, network and UTS, `enter` joins the user namespace.

    bwrap builds the sandbox as root of one user namespace and runs it in a nested, unprivileged one. The supervisor
    stays in the outer one, where it can mount and create PID namespaces.
    """

    def __init__(self, pid: int) -> None:
        opened = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in (*_JOINED, "user")}
        owner = fcntl.ioctl(opened["mnt"], _NS_GET_USERNS)
        os.setns(owner, os.CLONE_NEWUSER)
        for kind in _JOINED:
            os.setns(opened[kind])
            os.close(opened[kind])
        same = os.path.samestat(os.fstat(owner), os.fstat(opened["user"]))
        self._inner_user = None if same else opened["user"]
        os.close(owner)
        os.chdir("/")

    def enter(self) -> None:
        """Irreversibly become an unprivileged process of the sandbox; call it after a fork."""
        if self._inner_user is not None:
            os.setns(self._inner_user, os.CLONE_NEWUSER)
        drop_bounding_set()


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .seccomp import Filter
    from .settings import Settings

_READY = b"ready\n"
# The command of bwrap; it is killed as soon as its namespaces are joined.
_WAITING_PROCESS = "command -v sleep >/dev/null || exit 127; echo ready; sleep 2147483647"
_ISOLATION = (
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--hostname", "sandbox", "--clearenv", "--new-session", "--die-with-parent", "--as-pid-1"),
)
_SIGKILL = 9


class LaunchError(Exception):
    """The sandbox could not be started."""


class Sandbox:
    """A running sandbox: the namespaces that this process has joined, and the current generation."""

    def __init__(self, namespaces: Namespaces, limits: ProcessLimits, system_calls: Filter) -> None:
        self.namespaces, self.limits, self.system_calls = namespaces, limits, system_calls
        self.shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        self._maker = Maker(limits, system_calls)
        self.begin_generation()

    def begin_generation(self) -> None:
        """Start a new generation; the previous one must be reaped."""
        self.generation = self._maker.make()

    def destroy(self) -> None:
        """Kill all processes of the sandbox and wait for their end."""
        self._maker.end()
        try:
            self.generation.kill()
        except ProcessLookupError:
            pass
        while _reap_child():  # the first process ends only after all children of this process are reaped
            pass


def _reap_child() -> bool:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def launch(settings: Settings, system_calls: Filter) -> Sandbox:
    """Start bwrap, wait until its process is ready, join its namespaces, and kill bwrap."""
    group = _open_group(settings.control_group)
    if settings.uid is not None:
        _become(settings.uid)
    longest_buffer = socket_buffer()
    bwrap = _Bwrap(settings, system_calls)
    try:
        if group is not None:
            _join_group(group)  # slow, so it runs while bwrap starts
        first = bwrap.wait_until_ready(settings.start_timeout_s)
        check_isolation(first, bwrap.pid)
        namespaces = Namespaces(first)
    except (LaunchError, OSError) as error:
        bwrap.kill()
        raise LaunchError(str(error)) from error
    bwrap.kill()
    try:
        limit_network_buffers(longest_buffer)
        mount_storage(settings.writable, settings.disk)
        os.makedirs(settings.workdir, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"the writable folders could not be made: {error}") from error
    try:
        return Sandbox(namespaces, settings.limits, system_calls)
    except OSError as error:
        raise LaunchError(str(error)) from error


def _open_group(path: str) -> int | None:
    """Open the members file of a control group, before this process drops root."""
    try:
        return os.open(path, os.O_WRONLY) if path else None
    except OSError:
        return None


def _join_group(descriptor: int) -> None:
    """Move this process and its future children into a control group, if permitted."""
    try:
        os.write(descriptor, b"0")
    except OSError:  # older kernels check the permissions of the writer, not of the opener
        pass
    finally:
        os.close(descriptor)


def _become(uid: int) -> None:
    """Drop root, because files must not belong to root, and process limits do not apply to root."""
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise LaunchError(f"cannot become the unprivileged user {uid}: {error}") from error


class _Bwrap:
    """The bwrap process."""

    def __init__(self, settings: Settings, system_calls: Filter) -> None:
        self._output, output = os.pipe()
        self._errors, errors = os.pipe()
        self._status, status = os.pipe()
        self._received: dict[int, bytes] = {self._output: b"", self._errors: b"", self._status: b""}
        files = {_memory_file(content): path for path, content in settings.generated.items()}
        filter_file = _memory_file(system_calls.code)
        self.pid = os.fork()
        if self.pid == 0:
            _exec_bwrap(settings, {1: output, 2: errors}, status, filter_file, files)
        for descriptor in (output, errors, status, filter_file, *files):
            os.close(descriptor)

    def wait_until_ready(self, timeout_s: float) -> int:
        """Wait until the sandbox's first process is ready and return its PID."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        for descriptor in self._received:
            poll.register(descriptor, select.POLLIN)
        open_ends = set(self._received)
        while open_ends:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise LaunchError(f"bwrap was not ready after {timeout_s:g} s{self._read_errors()}")
            for descriptor, _ in poll.poll(remaining * 1000):
                data = os.read(descriptor, 65536)
                self._received[descriptor] += data
                if not data:
                    poll.unregister(descriptor)
                    open_ends.discard(descriptor)
            if self._received[self._output].endswith(_READY):
                return self._child_pid()
        raise LaunchError(f"bwrap ended before the sandbox was ready{self._read_errors()}")

    def kill(self) -> None:
        """Kill bwrap and its child."""
        try:
            # Killing only bwrap could leave its child running.
            os.kill(self._child_pid(), _SIGKILL)
        except (LaunchError, OSError):
            pass
        os.killpg(self.pid, _SIGKILL)
        os.waitpid(self.pid, 0)
        for descriptor in self._received:
            os.close(descriptor)

    def _child_pid(self) -> int:
        # `{"child-pid": 12, ...}`; bwrap writes this before it starts anything.
        _, mark, rest = self._received[self._status].partition(b'"child-pid":')
        digits = rest.split(b",")[0].split(b"}")[0].strip()
        if not mark or not digits.isdigit():
            raise LaunchError(f"bwrap did not report the process that it started{self._read_errors()}")
        return int(digits)

    def _read_errors(self) -> str:
        text = self._received[self._errors].decode("utf-8", "replace").strip()
        return f"; it said: {text}" if text else " and said nothing"


def _exec_bwrap(
    settings: Settings, streams: dict[int, int], status: int, filter_file: int, files: dict[int, str]
) -> None:
    """Replace this forked child by bwrap."""
    try:
        os.setsid()
        for target, source in streams.items():
            os.dup2(source, target)
        keep_descriptors_from_programs()
        for descriptor in (status, filter_file, *files):
            os.set_inheritable(descriptor, True)
        user = str(settings.user)
        arguments = [settings.bwrap, *_ISOLATION, "--uid", user, "--gid", user, "--json-status-fd", str(status)]
        arguments += ["--seccomp", str(filter_file), *settings.mounts]
        for descriptor, path in files.items():
            arguments += ["--perms", "0644", "--file", str(descriptor), path]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        for folder in settings.writable:
            arguments += ["--dir", folder]
        arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
        os.execv(settings.bwrap, [*arguments, "--", "/bin/sh", "-c", _WAITING_PROCESS])
    except OSError as error:
        os.write(2, f"{settings.bwrap}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("file")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
