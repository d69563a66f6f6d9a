"""Keeps scoring from taking the machine away from training: it works in turns, and rests between them.

A pace lets a number of attempts begin together and, once they are done, waits until the time they took is no more than
its share of the time that has passed. Who needs the scores at once releases it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

_LONGEST_REST_S, _SHORTEST_REST_S = 0.05, 0.001
"""How soon it is noticed that the pace was released; and what is not worth waiting for."""


@dataclass(slots=True)
class Pace:
    """Entered by each attempt, in one event loop."""

    share: float
    """Of the time, that attempts may take; 1 never waits."""
    at_once: int
    """How many may be under way."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set once no one is to be spared any more."""
    clock: Callable[[], float] = time.monotonic
    _door: asyncio.Lock | None = None
    """Only the first in the queue looks at the clock."""
    _began: float | None = None
    _worked: float = 0.0
    """Seconds during which an attempt was under way, up to `_since`."""
    _since: float = 0.0
    _active: int = 0
    _together: int = 0
    """How many began since the last rest."""

    @property
    def rest(self) -> float:
        """Seconds to wait before another attempt may begin."""
        if self.released.is_set() or self._began is None:
            return 0.0
        if self._active and self._together < self.at_once:
            return 0.0  # so many go together, and the rest that follows is for all of them
        now = self.clock()
        worked = self._worked + (now - self._since if self._active else 0.0)
        # While attempts are under way no one knows how long they will take: look again soon.
        return max(worked / self.share - (now - self._began), _LONGEST_REST_S if self._active else 0.0)

    async def __aenter__(self) -> Self:
        if self.share >= 1:
            return self
        self._door = self._door or asyncio.Lock()
        async with self._door:
            while (rest := self.rest) > _SHORTEST_REST_S:
                await asyncio.sleep(min(rest, _LONGEST_REST_S))
            now = self.clock()
            self._began = now if self._began is None else self._began
            if not self._active:
                self._since, self._together = now, 0
            self._active, self._together = self._active + 1, self._together + 1
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.share >= 1:
            return
        self._active -= 1
        if not self._active:
            self._worked += self.clock() - self._since
