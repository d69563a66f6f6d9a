"""One process per folder: a lock that its owner's death releases, however it dies.

with folder_lock(run_dir, what="run 'sft'", patience_s=30):
    ...
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import TrainingError

LOCK_FILE = ".lock"
_POLL_S = 0.05


class FolderBusy(TrainingError):
    """Another process works in a folder."""


@contextmanager
def folder_lock(folder: Path, *, what: str, patience_s: float = 2.0, remedy: str = "") -> Generator[None]:
    """Hold the lock of a folder; wait at most `patience_s` for whoever holds it, or only looks whether someone does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + patience_s
        while not _take(file):
            if time.monotonic() >= deadline:
                raise FolderBusy(f"{what} is being run by {_described(lock_owner(folder))}. {remedy}".rstrip())
            time.sleep(_POLL_S)
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}, file)
        file.flush()
        yield  # closing the file releases it; the file stays, because removing it would race with the next owner


def lock_owner(folder: Path) -> dict[str, Any] | None:
    """Who holds the lock of a folder (`pid`, `host`, `time`); None when nobody does."""
    path = folder / LOCK_FILE
    if not path.exists():
        return None
    with path.open("r", encoding="utf-8") as file:
        if _take(file, shared=True):
            return None
        try:
            owner: Any = json.loads(file.read())
        except ValueError:  # it is writing its name at this moment
            owner = {}
    return owner if isinstance(owner, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _take(file: IO[str], *, shared: bool = False) -> bool:
    try:
        import fcntl
    except ImportError:  # no such locks here; two owners are then the user's care
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _described(owner: dict[str, Any] | None) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')}"
