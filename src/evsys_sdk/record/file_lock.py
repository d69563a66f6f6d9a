"""One process at a time. The lock goes with the process that holds it, so a killed one never blocks the next."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from ..log import get_logger


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Generator[None]:
    """Hold the lock file `path`; waits, and says so, while another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows: files still change atomically, so the worst case is the same work done twice
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            get_logger(__name__).info("waiting for another process that is writing %s", what)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # closing the file lets go; the file stays, because removing it would let two processes hold two locks
