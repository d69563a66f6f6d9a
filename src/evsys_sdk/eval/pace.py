"""Limits the share of time that in-loop scoring takes from training.

A `Pace` starts a batch of attempts together. After the batch it pauses until scoring has used at most `share` of the
elapsed time. Setting `released` ends the throttling.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

_LONGEST_REST_S, _SHORTEST_REST_S = 0.05, 0.001
"""Longest pause before `released` is checked again; pauses below the second are skipped."""


@dataclass(slots=True)
class Pace:
    """Context manager around each attempt, in one event loop."""

    share: float
    """Largest share of elapsed time for attempts; 1 never waits."""
    at_once: int
    """Attempts that may run at the same time."""
    released: threading.Event = field(default_factory=threading.Event)
    """Once set, attempts no longer wait."""
    clock: Callable[[], float] = time.monotonic
    _queue: asyncio.Lock | None = None
    """Only the first waiting attempt reads the clock."""
    _began: float | None = None
    _worked: float = 0.0
    """Seconds during which attempts ran, up to `_since`."""
    _since: float = 0.0
    _active: int = 0
    _batch_size: int = 0
    """Attempts started since the last pause."""

    @property
    def rest(self) -> float:
        """Seconds until another attempt may start."""
        if self.released.is_set() or self._began is None:
            return 0.0
        if self._active and self._batch_size < self.at_once:
            return 0.0  # the attempts of a batch share one pause after it
        now = self.clock()
        worked = self._worked + (now - self._since if self._active else 0.0)
        # The duration of running attempts is unknown: check again soon.
        return max(worked / self.share - (now - self._began), _LONGEST_REST_S if self._active else 0.0)

    async def __aenter__(self) -> Self:
        if self.share >= 1:
            return self
        self._queue = self._queue or asyncio.Lock()
        async with self._queue:
            while (rest := self.rest) > _SHORTEST_REST_S:
                await asyncio.sleep(min(rest, _LONGEST_REST_S))
            now = self.clock()
            self._began = now if self._began is None else self._began
            if not self._active:
                self._since, self._batch_size = now, 0
            self._active, self._batch_size = self._active + 1, self._batch_size + 1
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.share >= 1:
            return
        self._active -= 1
        if not self._active:
            self._worked += self.clock() - self._since
