"""A control group for one sandbox: the kernel's own limit on all memory of it, wherever this user may make one.

The limit covers what nothing else counts exactly: files in memory, buffers of sockets and pipes, tables of the kernel.
It is set above what the supervisor allows, which is kinder: it ends the largest process and says so.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
MEMBERS = "cgroup.procs"
"""The file of a group that a process writes 0 to in order to join."""
_SPARE = 160 * 1024 * 1024  # the supervisor itself, and what the kernel needs for the files and processes
_numbers = itertools.count()
_closed: list[Path] = []
"""Groups whose sandbox has ended; one with a process that has not quite ended is removed later."""


def close_group(group: Path) -> None:
    """Remove the group of a sandbox that has ended, as soon as that is possible."""
    _closed.append(group)
    _remove_closed()


@atexit.register
def _remove_closed() -> None:
    for group in _closed[:]:
        with contextlib.suppress(OSError):  # a process in it has not quite ended
            group.rmdir()
        if not group.exists():
            _closed.remove(group)


def make_group(memory: int) -> Path | None:
    """The folder of a group for a sandbox that may use so much memory; None where this user can make none."""
    _remove_closed()
    for parent in _parents():
        group = parent / f"evsys-{os.getpid()}-{next(_numbers)}"
        try:
            group.mkdir()
        except OSError:
            continue
        if _set_limit(group, memory + _SPARE) and os.access(group / MEMBERS, os.W_OK):
            _remove_leftovers(parent)
            return group
        close_group(group)
    return None


def _set_limit(folder: Path, limit: int) -> bool:
    for name, extra in (("memory.max", "memory.swap.max"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")):
        with contextlib.suppress(OSError):
            # Only a file of the kernel's counts: a folder without the memory controller has none to write to.
            descriptor = os.open(folder / name, os.O_WRONLY)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(str(limit))
            with contextlib.suppress(OSError):  # there may be no swap to limit
                Path(folder, extra).write_text("0" if extra == "memory.swap.max" else str(limit), encoding="ascii")
            return True
    return False


def _parents() -> list[Path]:
    """Folders in which a group could be made: this process's own group, or the one above it."""
    try:
        lines = Path("/proc/self/cgroup").read_text("ascii").splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _ROOT / controllers if controllers else _ROOT
        own = root / path.lstrip("/")
        found += [own, own.parent] if own != root else [own]
    return [folder for folder in found if folder.is_dir() and os.access(folder, os.W_OK)]


def _remove_leftovers(parent: Path) -> None:
    """Remove groups of processes that were killed before they could."""
    for folder in parent.glob("evsys-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
