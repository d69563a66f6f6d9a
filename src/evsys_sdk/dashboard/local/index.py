"""The index of the experiments of a project on this disk, fast enough for frequent requests.

Refreshing the index checks the files of every experiment, which is slow for thousands of them. Above `_MANY`
experiments, a background thread refreshes it and requests use the last state; the page receives later changes as
events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ...history.index import HistoryIndex
from ...log import get_logger
from ...record.values import subfolders
from ..shapes.experiment import Progress

_MANY = 1000
"""Number of experiments above which a background thread refreshes the index."""
_MOST_OF_THE_TIME = 10
"""The thread runs for at most one part in this many of the time."""


class LocalIndex:
    """Opens the index of the experiments below some folders; thread-safe."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self._lock = threading.Lock()
        self._folders = 0
        self._refreshing = self._refreshed = False
        self._next = 0.0

    def open(self) -> HistoryIndex:
        """The current index; with many experiments, the state of the last background refresh."""
        if self._folders <= _MANY:
            self._folders = self._count()
        if self._folders <= _MANY:
            return HistoryIndex(self.roots)
        self._start_refresh()
        index = HistoryIndex(self.roots, refresh=False)
        if index.is_on_disk:
            return index
        index.close()  # the index cannot be stored here, so it is rebuilt for each request
        return HistoryIndex(self.roots)

    def progress(self, n_indexed: int) -> Progress | None:
        """The progress of the first background refresh, with `n_indexed` experiments so far; None if it is complete."""
        with self._lock:
            is_running = self._refreshing and not self._refreshed
        return Progress(done=min(n_indexed, self._folders), of=self._folders) if is_running else None

    def _start_refresh(self) -> None:
        with self._lock:
            if self._refreshing or time.monotonic() < self._next:
                return
            self._refreshing = True
        threading.Thread(target=self._refresh, name="evsys-index", daemon=True).start()

    def _refresh(self) -> None:
        began = time.monotonic()
        try:
            self._folders = self._count()
            HistoryIndex(self.roots).close()
        except Exception as error:  # retried at the next refresh
            get_logger(__name__).warning("the index of the experiments cannot be refreshed: %s", error)
        with self._lock:  # the pause is proportional to the duration
            now = time.monotonic()
            self._refreshing, self._refreshed, self._next = False, True, now + (now - began) * _MOST_OF_THE_TIME

    def _count(self) -> int:
        return sum(len(subfolders(root)) for root in self.roots)
