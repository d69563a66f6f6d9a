"""The processes of a sandbox, seen through its /proc, and the limit on their memory together.

Each process has a hard limit of its own (`limits.py`). Their sum is looked at many times a second; above the limit the
largest process is killed, as the kernel would do in a container. This works without control groups, which an ordinary
user often may not make.
"""

from __future__ import annotations

import os

from .libc import remove_shared_memory

_SIGKILL = 9
_PF_EXITING = 4
_PAGE = os.sysconf("SC_PAGESIZE")
_MB = 1024 * 1024
_ALLOWANCE = 32 * _MB  # for shells and libraries, so that one large process meets its own limit first


class MemoryWatch:
    """Looks after the memory of the sandbox whose /proc this process sees."""

    def __init__(self, limit: int) -> None:
        self._limit = limit + _ALLOWANCE

    def is_idle(self) -> bool:
        """Whether only PID 1 and its `sleep` are running, so that nothing can grow."""
        return len(processes()) <= 2

    def enforce(self) -> tuple[int, str] | None:
        """Nothing while all is well; else the process that must be killed, by its number inside, and why."""
        segments = sum(_shared_segments().values())
        # What processes share is counted for each of them here, which is quick and never too low ...
        found = processes()
        if segments + sum(_resident(pid) for pid in found) <= self._limit:
            return None
        shares = {pid: _proportional(pid) for pid in found}  # ... and once here, which is slow and exact.
        used = segments + sum(shares.values())
        if used <= self._limit:
            return None
        largest = max(shares, key=lambda pid: shares[pid])
        return largest, (
            f"the processes of this sandbox used {used // _MB} MB together and may use {self._limit // _MB} MB; "
            f"the largest, {_name(largest)} (PID {largest}), was killed"
        )


def kill_inside(pid: int) -> None:
    """Kill a process by its number in this PID namespace, and free shared memory that belongs to no process."""
    for segment in _shared_segments():
        remove_shared_memory(segment)
    if pid > 1:
        os.kill(pid, _SIGKILL)


def processes() -> list[int]:
    """The processes of the sandbox, by their numbers inside."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not only waiting to be buried."""
    status = _read(f"/proc/{pid}/stat")
    return bool(status) and status.rpartition(b") ")[2][:1] not in (b"Z", b"X")


def sandbox_lives() -> bool:
    """Whether PID 1 exists and is not on its way out, taking all the others along."""
    fields = _read("/proc/1/stat").rpartition(b") ")[2].split()
    return len(fields) > 6 and not int(fields[6]) & _PF_EXITING


def _resident(pid: int) -> int:
    return int((_read(f"/proc/{pid}/statm").split() or [b"0", b"0"])[1]) * _PAGE


def _proportional(pid: int) -> int:
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _shared_segments() -> dict[int, int]:
    """System V shared memory that no process has attached: identifier -> bytes in memory."""
    lines = _read("/proc/sysvipc/shm").splitlines()
    if len(lines) < 2:
        return {}
    columns = lines[0].split()
    identifier, attached, resident = (columns.index(name) for name in (b"shmid", b"nattch", b"rss"))
    rows = [line.split() for line in lines[1:]]
    return {int(row[identifier]): int(row[resident]) for row in rows if row[attached] == b"0"}


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip() or "a process"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has just ended
        return b""
