"""One process at a time. A lock goes with the process that holds it, so a killed one never blocks the next.

with folder_lock(run_dir, what="run 'sft'", patience_s=30):
    ...
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, cast

from ..errors import TrainingError
from ..log import get_logger
from .layout import ExperimentFiles, find_locked

# `flock`, not `lockf`: it belongs to the open file, so that two parts of one process keep each other out as well, and
# closing the file elsewhere in the process does not release it.
try:
    import fcntl
except ImportError:  # Windows: files still change atomically; two owners of a folder are then the user's care
    fcntl = None

_POLL_S = 0.05


class FolderBusy(TrainingError):
    """Another process works in a folder."""


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Generator[None]:
    """Hold the lock file `path`; waits, and says so, while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # Without waiting at first, only to be able to say what it waits for; to hold a lock twice through one open
        # file is to hold it once.
        if not _take(file):
            get_logger(__name__).info("waiting for another process that is writing %s", what)
        with exclusive_use(file.fileno()):
            yield  # the file stays, because removing it would let two processes hold two locks


@contextlib.contextmanager
def exclusive_use(descriptor: int) -> Generator[None]:
    """Hold the lock of an open file for a moment; waits for its owner."""
    if fcntl is None:
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def folder_lock(folder: Path, *, what: str, patience_s: float = 2.0, remedy: str = "") -> Generator[None]:
    """Hold the lock of a folder; wait at most `patience_s` for its owner, or only check whether there is one."""
    import socket

    folder.mkdir(parents=True, exist_ok=True)
    with ExperimentFiles(folder).lock.open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + patience_s
        while not _take(file):
            if time.monotonic() >= deadline:
                raise FolderBusy(f"{what} is being run by {_describe(lock_owner(folder))}. {remedy}".rstrip())
            time.sleep(_POLL_S)
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}, file)
        file.flush()
        yield  # closing the file releases it; the file stays, because removing it would race with the next owner


def lock_owner(folder: Path) -> dict[str, Any] | None:
    """Who holds the lock of a folder (`pid`, `host`, `time`); None when no one does."""
    try:
        with ExperimentFiles(folder).lock.open("r", encoding="utf-8") as file:
            # Shared, so that two who look at the same moment do not take each other for its owner.
            return None if _take(file, shared=True) else _parse_owner(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def last_owner(folder: Path) -> dict[str, Any] | None:
    """Who held the lock of a folder last; None when no one ever did."""
    try:
        return _parse_owner(ExperimentFiles(folder).lock.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def find_owned(root: Path) -> list[Path]:
    """The experiments below a root that somebody is running; looking at the locks is quicker than at the record."""
    return [folder for folder in find_locked(root) if lock_owner(folder) is not None]


def _take(file: IO[Any], *, shared: bool = False) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _parse_owner(text: str) -> dict[str, Any]:
    """What an owner has written; nothing where it is writing its name at this moment."""
    try:
        owner: Any = json.loads(text)
    except ValueError:
        owner = None
    return cast(dict[str, Any], owner) if isinstance(owner, dict) else {}


def _describe(owner: dict[str, Any] | None) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')}"
