"""A control group (cgroup) per sandbox: a kernel limit on its total memory, if the user may create one.

The limit includes memory that the supervisor cannot count exactly: tmpfs files, socket and pipe buffers, kernel tables.
It is above the supervisor's own limit, so that the supervisor first kills the largest process and reports it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
MEMBERS = "cgroup.procs"
"""A process joins a group by writing 0 to this file."""
_SPARE = 160 * 1024 * 1024  # for the supervisor, and for kernel memory of files and processes
_numbers = itertools.count()
_closed: list[Path] = []
"""Groups of ended sandboxes that are not yet removed, because a process in them is still exiting."""


def close_group(group: Path) -> None:
    """Remove the group of an ended sandbox, now or when its last process has exited."""
    _closed.append(group)
    _remove_closed()


@atexit.register
def _remove_closed() -> None:
    for group in _closed[:]:
        with contextlib.suppress(OSError):  # a process in it is still exiting
            group.rmdir()
        if not group.exists():
            _closed.remove(group)


def make_group(memory: int) -> Path | None:
    """Create a group with a limit of `memory` bytes plus a reserve; return its folder, or None if not permitted."""
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
            # Without O_CREAT: a group without the memory controller lacks this file.
            descriptor = os.open(folder / name, os.O_WRONLY)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(str(limit))
            with contextlib.suppress(OSError):  # swap accounting may be disabled
                Path(folder, extra).write_text("0" if extra == "memory.swap.max" else str(limit), encoding="ascii")
            return True
    return False


def _parents() -> list[Path]:
    """Return writable folders for a new group: this process's own group and its parent."""
    try:
        lines = Path("/proc/self/cgroup").read_text("ascii").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _ROOT / controllers if controllers else _ROOT
        group = root / path.lstrip("/")
        folders += [group, group.parent] if group != root else [group]
    return [folder for folder in folders if folder.is_dir() and os.access(folder, os.W_OK)]


def _remove_leftovers(parent: Path) -> None:
    """Remove groups of processes that no longer exist."""
    for folder in parent.glob("evsys-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
