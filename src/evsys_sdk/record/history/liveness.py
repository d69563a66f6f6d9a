"""Whether somebody still works on an experiment that has no end.

A run holds the lock of the experiment's folder while it works. Folders without one are judged by how long ago anything
in them changed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from .reading import JOURNAL, mtime, number, read_object, subfolders, text

_QUIET_S = 900
"""Longest time without any change after which a run on another machine is still taken to be alive."""
_MOST_FOLDERS = 64


def is_running(folder: Path) -> bool:
    """Whether a process works on the experiment in `folder`."""
    import socket  # takes a few milliseconds, and most histories have nothing unfinished

    owner = read_object(folder / ".lock")
    if owner is not None and text(owner.get("host")) == socket.gethostname():
        pid = number(owner.get("pid"))
        return pid is not None and pid > 0 and _is_alive(int(pid)) and _is_locked(folder / ".lock")
    return time.time() - last_activity(folder) < _QUIET_S


def last_activity(folder: Path) -> float:
    """When something in an experiment's folder last changed, as far as a quick look can tell."""
    seen = [mtime(folder / JOURNAL), mtime(folder)]
    for arm in [folder / name for name in subfolders(folder)[:_MOST_FOLDERS]]:
        seen += [mtime(arm), mtime(arm / "logs" / "metrics.jsonl"), mtime(arm / "checkpoints.jsonl")]
    return max((at for at in seen if at is not None), default=0.0)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except OSError:  # it is somebody else's process, but it is there
        return True
    return True


def _is_locked(path: Path) -> bool:
    """Whether the process with that number is the one that took the lock: numbers are used again."""
    try:
        import fcntl

        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except (OSError, ImportError):
        return True
    return False
