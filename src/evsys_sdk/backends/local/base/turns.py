"""A fair lock: first come, first served.

Training and sampling of several runs use a base from separate threads, each for short pieces of work. With an ordinary
lock, the thread that releases it would mostly acquire it again at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType


class Turns:
    """Fair mutual exclusion, not reentrant; entering returns the seconds waited."""

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
        mine.wait()  # the previous holder passes the lock on, so `_taken` stays set
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
    """Measures the seconds that one thread computes on a base, without waiting for turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._computed, self._began = turns, 0.0, 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._computed += time.perf_counter() - self._began

    @contextmanager
    def turn(self) -> Generator[None]:
        """Hold a turn; subtract the time waited for it."""
        with self._turns as waited:
            self._computed -= waited
            yield

    def discount(self, seconds: float) -> None:
        """Subtract seconds in which this thread did not compute."""
        self._computed -= seconds

    def take(self) -> float:
        """Return the seconds measured since the last call."""
        seconds, self._computed = self._computed, 0.0
        return seconds
