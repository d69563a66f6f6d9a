"""The experiments of a project on this disk, for many questions a minute.

Whether anything changed is asked of the disk experiment by experiment, which for ten thousand of them takes longer than
a person waits gladly. With so many one thread looks, and questions are answered with what it has found so far; the page
hears of what is found later as it hears of every change.
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
"""More experiments than that are looked at by the thread."""
_MOST_OF_THE_TIME = 10
"""It looks for at most one part in so many of the time."""


class LocalIndex:
    """Opens the index of the experiments below some folders; safe to ask from several threads."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self._lock = threading.Lock()
        self._folders = 0
        self._looking = self._looked = False
        self._next = 0.0

    def open(self) -> HistoryIndex:
        """The index as it is now, or, where there are many experiments, as the last look found it."""
        if self._folders <= _MANY:
            self._folders = self._count()
        if self._folders <= _MANY:
            return HistoryIndex(self.roots)
        self._start_look()
        index = HistoryIndex(self.roots, refresh=False)
        if index.is_kept:
            return index
        index.close()  # nothing can be written here, so each look is for one question
        return HistoryIndex(self.roots)

    def progress(self, found: int) -> Progress | None:
        """How far the first look has come, if it still continues and has `found` so many."""
        with self._lock:
            going_on = self._looking and not self._looked
        return Progress(done=min(found, self._folders), of=self._folders) if going_on else None

    def _start_look(self) -> None:
        with self._lock:
            if self._looking or time.monotonic() < self._next:
                return
            self._looking = True
        threading.Thread(target=self._look, name="evsys-index", daemon=True).start()

    def _look(self) -> None:
        began = time.monotonic()
        try:
            self._folders = self._count()
            HistoryIndex(self.roots).close()
        except Exception as error:  # the next look may find it mended
            get_logger(__name__).warning("the experiments cannot be looked through: %s", error)
        with self._lock:  # the longer a look takes, the longer until the next
            now = time.monotonic()
            self._looking, self._looked, self._next = False, True, now + (now - began) * _MOST_OF_THE_TIME

    def _count(self) -> int:
        return sum(len(subfolders(root)) for root in self.roots)
