"""File locks between processes. The system releases the lock of a killed process.

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

# `flock`, not `lockf`: it belongs to the open file, so it also works between threads, and closing another descriptor
# of the file does not release it.
try:
    import fcntl
except ImportError:  # Windows has no locks here; files still change atomically
    fcntl = None

_POLL_S = 0.05


class FolderBusy(TrainingError):
    """Another process holds the lock of a folder."""


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Generator[None]:
    """Hold the lock file `path`; waits, with a log line, while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # A first try without waiting, for the log line; taking the lock again through the same open file is allowed.
        if not _take(file):
            get_logger(__name__).info("waiting for another process that is writing %s", what)
        with exclusive_use(file.fileno()):
            yield  # the file stays: after its removal, two processes could hold two locks


@contextlib.contextmanager
def exclusive_use(descriptor: int) -> Generator[None]:
    """Hold the lock of an open file; waits for its owner."""
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
    """Hold the lock of a folder; FolderBusy if another process still holds it after `patience_s`."""
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
        yield  # closing releases the lock; removing the file would race with the next owner


def lock_owner(folder: Path) -> dict[str, Any] | None:
    """The owner of a folder's lock (`pid`, `host`, `time`); None if it is free."""
    try:
        with ExperimentFiles(folder).lock.open("r", encoding="utf-8") as file:
            # Shared, so that two concurrent checks do not see each other as the owner.
            return None if _take(file, shared=True) else _parse_owner(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def last_owner(folder: Path) -> dict[str, Any] | None:
    """The last owner of a folder's lock; None if it never had one."""
    try:
        return _parse_owner(ExperimentFiles(folder).lock.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def find_owned(root: Path) -> list[Path]:
    """The running experiments below a root, by their locks, which is faster than reading the records."""
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
    """The content of a lock file; empty while the owner is writing it."""
    try:
        owner: Any = json.loads(text)
    except ValueError:
        owner = None
    return cast(dict[str, Any], owner) if isinstance(owner, dict) else {}


def _describe(owner: dict[str, Any] | None) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('pid')} on {owner.get('host')}"
