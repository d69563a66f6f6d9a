"""The processes of a sandbox, read from its /proc, and the limit on their total memory.

Each process has its own hard limit (`settings.py`). Their sum is checked up to 100 times a second, including kernel
memory: page tables, sockets and descriptors. Above the limit the largest process is killed, as the kernel does in a
container. This works without control groups, which unprivileged users often cannot create.
"""

from __future__ import annotations

import os
import time
from _signal import pidfd_send_signal  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

from .libc import PR_SET_DUMPABLE, prctl, remove_shared_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SIGKILL, _SIGCONT, _SIGSTOP = 9, 18, 19
_KB = 1024
_MB = 1024 * 1024
_ALLOWANCE = 32 * _MB  # for shells and libraries, so that one large process meets its own limit first
_FREE_DESCRIPTORS = 256  # descriptors per process that are not counted
_PER_DESCRIPTOR = 8 * _KB  # a pipe of a user with many pipes
_PER_WATCH = 200  # an epoll watch; each descriptor may watch each other descriptor
_PER_THREAD = 32 * _KB  # kernel stack and descriptor
_PAGE, _PER_MAPPING, _MOST_MAPPINGS = 4 * _KB, 256, 65_530  # the last is Linux's limit per process


class MemoryWatch:
    """Enforces the memory limit of the sandbox whose /proc this process sees."""

    def __init__(self, limit: int, socket_buffer: int) -> None:
        self._limit = limit + _ALLOWANCE
        self._socket_buffer = socket_buffer
        self.pause_s = 0.0
        """Pause before the next check: a quarter of the duration of the last exact check."""

    def is_idle(self) -> bool:
        """Whether only the first process is running, so that memory cannot grow."""
        return len(processes()) <= 1

    def enforce(self, tick: Callable[[], None]) -> str:
        """Kill the largest process if the total exceeds the limit; return the reason, or an empty string.

        `tick` is called for each process, so that time limits are enforced while many processes are checked.
        """
        segments = _list_shared_segments()
        sockets = _number(b"\n" + _read("/proc/1/net/sockstat"), b"\nsockets: used")
        common = sum(segments.values()) + sockets * self._socket_buffer
        # A fast upper bound: shared memory counts for each process.
        usage: dict[int, _ProcessMemory] = {}
        for pid in processes():
            tick()
            if (memory := _ProcessMemory(pid)).resident:
                usage[pid] = memory
        rough = common + sum(memory.resident + memory.by_kernel + memory.for_mappings for memory in usage.values())
        self.pause_s = 0.0
        if rough <= self._limit:
            return ""
        # The exact sum is slow; stop the processes, so that they do not grow or use CPU time meanwhile.
        began = time.monotonic()
        stopped = [pid for pid, memory in usage.items() if pid != 1 and not memory.is_stopped]
        for pid in stopped:
            _signal(pid, _SIGSTOP)
        try:
            return self._enforce_exactly(usage, common, segments, tick)
        finally:
            for pid in stopped:
                _signal(pid, _SIGCONT)
            self.pause_s = (time.monotonic() - began) / 4

    def _enforce_exactly(
        self, usage: dict[int, _ProcessMemory], common: int, segments: dict[int, int], tick: Callable[[], None]
    ) -> str:
        shares: dict[int, int] = {}
        for pid, memory in usage.items():
            tick()
            mappings = _read(f"/proc/{pid}/maps").count(b"\n") * _PER_MAPPING
            exact = _number(_read(f"/proc/{pid}/smaps_rollup"), b"\nPss:") * _KB
            shares[pid] = exact + memory.by_kernel + mappings
        used = common + sum(shares.values())
        if used <= self._limit:
            return ""
        for segment in segments:
            try:
                remove_shared_memory(segment)
            except OSError:  # already removed
                pass
        largest = max((pid for pid in shares if pid != 1), key=lambda pid: shares[pid], default=None)
        if largest is None:
            return ""
        name = _read(f"/proc/{largest}/comm").decode("utf-8", "replace").strip() or "a process"
        _signal(largest, _SIGKILL)
        return (
            f"the processes of this sandbox used {used // _MB} MB together and may use {self._limit // _MB} MB "
            f"(each socket counts {self._socket_buffer // _KB} KB); "
            f"the largest, {name} (PID {largest}), was killed"
        )


class _ProcessMemory:
    """Memory of one process: its own, and kernel memory for it."""

    def __init__(self, pid: int) -> None:
        status = _read(f"/proc/{pid}/status")
        self.is_stopped = b"\nState:\tT" in status
        self.resident = _number(status, b"\nVmRSS:") * _KB
        self.by_kernel = _number(status, b"\nVmPTE:") * _KB
        if (descriptors := _number(status, b"\nFDSize:")) > _FREE_DESCRIPTORS:
            watches = (descriptors // 2) ** 2 * _PER_WATCH
            self.by_kernel += max((descriptors - _FREE_DESCRIPTORS) * _PER_DESCRIPTOR, watches)
        self.by_kernel += _number(status, b"\nThreads:") * _PER_THREAD
        # An upper bound of one mapping per page, because counting them is slow.
        self.for_mappings = min(_number(status, b"\nVmSize:") * _KB // _PAGE, _MOST_MAPPINGS) * _PER_MAPPING


def socket_buffer() -> int:
    """Return the maximum bytes that a socket can buffer; reads the host's /proc."""
    sizes = [_read(f"/proc/sys/net/core/{name}") for name in ("rmem_default", "wmem_default")]
    return max([212_992, *(int(size) for size in sizes if size.strip().isdigit())])


def _signal(pid: int, number: int) -> None:
    """Send a signal to a process by its PID inside the sandbox; this process is outside of that PID namespace."""
    try:
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # already ended
        return
    try:
        pidfd_send_signal(process, number)
    except OSError:
        pass
    finally:
        os.close(process)


def processes() -> list[int]:
    """Return the PIDs of the sandbox's processes, as seen inside."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _list_shared_segments() -> dict[int, int]:
    """Return unattached System V shared memory segments: identifier -> bytes in memory."""
    lines = _read("/proc/sysvipc/shm").splitlines()
    if len(lines) < 2:
        return {}
    columns = lines[0].split()
    identifier, attached, resident = (columns.index(name) for name in (b"shmid", b"nattch", b"rss"))
    rows = [line.split() for line in lines[1:]]
    return {int(row[identifier]): int(row[resident]) for row in rows if row[attached] == b"0"}


def _number(text: bytes, label: bytes) -> int:
    """Return the number after a label; 0 if there is none."""
    words = text.partition(label)[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended
        return b""


# The order in which the kernel kills processes when memory runs out: commands first, then the supervisor.

_SUPERVISOR, _COMMAND = b"900", b"1000"
_host_proc = -1


def raise_oom_score() -> None:
    """Raise the OOM score of this process and its forks; call it while /proc is the host's."""
    global _host_proc
    _host_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    _write(_SUPERVISOR)


def raise_command_oom_score() -> None:
    """Raise the OOM score of this fork above the supervisor's; call it before entering the sandbox.

    Writing the score requires a dumpable process. While it is dumpable, only processes with rights in its user
    namespace can trace it, and the sandbox's processes have none.
    """
    prctl(PR_SET_DUMPABLE, 1)
    try:
        _write(_COMMAND)
    finally:
        prctl(PR_SET_DUMPABLE, 0)


def _write(score: bytes) -> None:
    try:
        file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=_host_proc)
    except OSError:  # not available in this kernel or container
        return
    try:
        os.write(file, score)
    except OSError:
        pass
    finally:
        os.close(file)
