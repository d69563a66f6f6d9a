"""A lock that is granted in the order in which it was asked for.

A base is used by training, by sampling and by other runs at the same time, each from its own thread and each for one
short piece of work at a time. With an ordinary lock the thread that releases it would mostly get it right back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType


class Turns:
    """Mutual exclusion, first come, first served; entering tells the seconds waited. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> float:
        with self._guard:
            if not self._taken:
                self._taken = True
                return 0.0
            mine = threading.Event()
            self._waiting.append(mine)
        began = time.perf_counter()
        mine.wait()  # the previous holder hands its turn over, so it stays taken
        return time.perf_counter() - began

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class Clock:
    """Seconds that one thread computed on a base; what it waited for its turns does not count."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._computed, self._began = turns, 0.0, 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._computed += time.perf_counter() - self._began

    @contextmanager
    def turn(self) -> Generator[None]:
        """A turn, within what is counted."""
        with self._turns as waited:
            self._computed -= waited
            yield

    def discount(self, seconds: float) -> None:
        """Do not count these, which others computed or no one did."""
        self._computed -= seconds

    def take(self) -> float:
        """The seconds since they were last asked for."""
        found, self._computed = self._computed, 0.0
        return found
