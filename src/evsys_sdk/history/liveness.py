"""Whether somebody still works on an experiment that has no end.

A run holds the lock of the experiment's folder while it works. Folders whose last owner was on another machine, or that
never had one, are judged by how long ago anything in them changed.
"""

from __future__ import annotations

import time
from pathlib import Path

from ..experiment.locks import LOCK_FILE, lock_owner
from .reading import JOURNAL, mtime, read_object, subfolders, text

_QUIET_S = 900
"""Longest time without any change after which a run on another machine is still taken to be alive."""
_MOST_FOLDERS = 64


def is_running(folder: Path) -> bool:
    """Whether a process works on the experiment in `folder`."""
    import socket  # takes a few milliseconds, and most histories have nothing unfinished

    last = read_object(folder / LOCK_FILE)
    if last is not None and text(last.get("host")) == socket.gethostname():
        return lock_owner(folder) is not None
    return time.time() - last_activity(folder) < _QUIET_S


def last_activity(folder: Path) -> float:
    """When something in an experiment's folder last changed, as far as a quick look can tell."""
    seen = [mtime(folder / JOURNAL), mtime(folder)]
    for arm in [folder / name for name in subfolders(folder)[:_MOST_FOLDERS]]:
        seen += [mtime(arm), mtime(arm / "logs" / "metrics.jsonl"), mtime(arm / "checkpoints.jsonl")]
    return max((at for at in seen if at is not None), default=0.0)
