"""The processes of a sandbox, seen through its /proc, and the limit on their memory together.

Each process has its own hard limit (`settings.py`). Their sum is looked at many times a second, with what the
kernel holds for them: page tables, sockets and descriptors. Above the limit the largest process is killed, as the
kernel would do in a container. This works without control groups, which an ordinary user often may not make.
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
_FREE_DESCRIPTORS = 256  # as many as a process may have before they count
_PER_DESCRIPTOR = 8 * _KB  # a pipe, once its user has many of them
_PER_WATCH = 200  # of epoll: each descriptor may watch each other one
_PER_THREAD = 32 * _KB  # its stack in the kernel, and what describes it
_PAGE, _PER_MAPPING, _MOST_MAPPINGS = 4 * _KB, 256, 65_530  # the last is what Linux allows a process


class MemoryWatch:
    """Looks after the memory of the sandbox whose /proc this process sees."""

    def __init__(self, limit: int, socket_buffer: int) -> None:
        self._limit = limit + _ALLOWANCE
        self._socket_buffer = socket_buffer
        self.pause_s = 0.0
        """How long the sandbox runs before the next look: a quarter of what this one took, or it could outgrow it."""

    def is_idle(self) -> bool:
        """Whether only the first process is running, so that nothing can grow."""
        return len(processes()) <= 1

    def enforce(self, tick: Callable[[], None]) -> str:
        """Kill the largest process if all together use too much; returns the reason, empty while all is well.

        A thousand processes take a while to look at, so `tick` is called after each: time limits do not wait.
        """
        segments = _list_shared_segments()
        sockets = _number(b"\n" + _read("/proc/1/net/sockstat"), b"\nsockets: used")
        common = sum(segments.values()) + sockets * self._socket_buffer
        # What processes share is counted for each of them here, which is quick and never too low ...
        found: dict[int, _Held] = {}
        for pid in processes():
            tick()
            if (held := _Held(pid)).resident:
                found[pid] = held
        rough = common + sum(held.resident + held.by_kernel + held.for_mappings for held in found.values())
        self.pause_s = 0.0
        if rough <= self._limit:
            return ""
        # ... and once here, which is slow and exact; stopped processes neither grow meanwhile nor take the time for it.
        began = time.monotonic()
        stopped = [pid for pid, held in found.items() if pid != 1 and not held.is_stopped]
        for pid in stopped:
            _signal(pid, _SIGSTOP)
        try:
            return self._enforce_exactly(found, common, segments, tick)
        finally:
            for pid in stopped:
                _signal(pid, _SIGCONT)
            self.pause_s = (time.monotonic() - began) / 4

    def _enforce_exactly(
        self, found: dict[int, _Held], common: int, segments: dict[int, int], tick: Callable[[], None]
    ) -> str:
        shares: dict[int, int] = {}
        for pid, held in found.items():
            tick()
            mappings = _read(f"/proc/{pid}/maps").count(b"\n") * _PER_MAPPING
            exact = _number(_read(f"/proc/{pid}/smaps_rollup"), b"\nPss:") * _KB
            shares[pid] = exact + held.by_kernel + mappings
        used = common + sum(shares.values())
        if used <= self._limit:
            return ""
        for segment in segments:
            try:
                remove_shared_memory(segment)
            except OSError:  # it has just been removed
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


class _Held:
    """What one process holds: its own memory, and what the kernel needs for it."""

    def __init__(self, pid: int) -> None:
        status = _read(f"/proc/{pid}/status")
        self.is_stopped = b"\nState:\tT" in status
        self.resident = _number(status, b"\nVmRSS:") * _KB
        self.by_kernel = _number(status, b"\nVmPTE:") * _KB
        if (descriptors := _number(status, b"\nFDSize:")) > _FREE_DESCRIPTORS:
            watches = (descriptors // 2) ** 2 * _PER_WATCH
            self.by_kernel += max((descriptors - _FREE_DESCRIPTORS) * _PER_DESCRIPTOR, watches)
        self.by_kernel += _number(status, b"\nThreads:") * _PER_THREAD
        # At most one for each page; what they really are takes long to count.
        self.for_mappings = min(_number(status, b"\nVmSize:") * _KB // _PAGE, _MOST_MAPPINGS) * _PER_MAPPING


def socket_buffer() -> int:
    """The most bytes that one socket can hold back; read from the host's /proc."""
    sizes = [_read(f"/proc/sys/net/core/{name}") for name in ("rmem_default", "wmem_default")]
    return max([212_992, *(int(size) for size in sizes if size.strip().isdigit())])


def _signal(pid: int, number: int) -> None:
    """Signal a process by its number in the sandbox; one that runs there could not be relied on to do it."""
    try:
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it has just ended
        return
    try:
        pidfd_send_signal(process, number)
    except OSError:
        pass
    finally:
        os.close(process)


def processes() -> list[int]:
    """The processes of the sandbox, by their numbers inside."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _list_shared_segments() -> dict[int, int]:
    """System V shared memory that no process has attached: identifier -> bytes in memory."""
    lines = _read("/proc/sysvipc/shm").splitlines()
    if len(lines) < 2:
        return {}
    columns = lines[0].split()
    identifier, attached, resident = (columns.index(name) for name in (b"shmid", b"nattch", b"rss"))
    rows = [line.split() for line in lines[1:]]
    return {int(row[identifier]): int(row[resident]) for row in rows if row[attached] == b"0"}


def _number(text: bytes, label: bytes) -> int:
    """The number after a label; 0 where there is none."""
    words = text.partition(label)[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has just ended
        return b""


# Who goes first when memory runs out, of the machine or of a control group: commands, then the supervisor.

_SUPERVISOR, _COMMAND = b"900", b"1000"
_host_proc = -1


def give_way() -> None:
    """Let this process, and what it forks, be ended before others; call it while /proc is the host's."""
    global _host_proc
    _host_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    _write(_SUPERVISOR)


def give_way_first() -> None:
    """Let this process be ended before the supervisor; for a fork that is still a stranger to the sandbox.

    The file belongs to a process that may be looked into, so for a moment this one may: but only by who has rights in
    its user namespace, which is not the one of the sandbox's processes yet.
    """
    prctl(PR_SET_DUMPABLE, 1)
    try:
        _write(_COMMAND)
    finally:
        prctl(PR_SET_DUMPABLE, 0)


def _write(score: bytes) -> None:
    try:
        file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=_host_proc)
    except OSError:  # a kernel or a container without it; then all are equal
        return
    try:
        os.write(file, score)
    except OSError:
        pass
    finally:
        os.close(file)
