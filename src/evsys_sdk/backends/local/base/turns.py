"""A lock that is granted in the order in which it was asked for.

A base is used by training, by sampling and by other runs at the same time, each from its own thread and each for one
short piece of work at a time. With an ordinary lock the thread that lets go would mostly get it right back.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    """Mutual exclusion, first come, first served. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()  # whoever was before hands its turn over, so it stays taken

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False
