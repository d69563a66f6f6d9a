"""Shadow answers: what other weights would have said to a request, drawn after who asked has the answer.

They never reach who asked and never hold up an answer: each is drawn when no one waits, one at a time and in short
pieces, and of more than can wait the rest is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ..log import get_logger
from .answer import Refusal
from .trace_log import ShadowAnswer, TraceLog

_MOST_WAITING: Final = 64
_LONGEST: Final = 262_144
"""Bytes of a request; a longer one would fill the memory while it waits."""

type Draw = Callable[[], Awaitable[dict[str, Any]]]
"""Draws the answer of a chat completion."""


@dataclass(slots=True)
class Shadows:
    """Draws what waits, one after another."""

    log: TraceLog
    _waiting: deque[tuple[str, str, list[dict[str, Any]], Draw]] = field(
        default_factory=deque[tuple[str, str, list[dict[str, Any]], Draw]]
    )
    _task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Requests that are answered or wait for it."""
        return len(self._waiting)

    def add(self, id: str, candidate: str, messages: list[dict[str, Any]], draw: Draw, *, size: int) -> None:
        """Have a request of `size` bytes answered by a candidate as well, some time."""
        if size > _LONGEST or len(self._waiting) >= _MOST_WAITING:
            self.log.count_dropped(candidate)
            return
        self._waiting.append((id, candidate, messages, draw))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())

    async def close(self) -> None:
        """Drop what waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, candidate, _, _ in self._waiting:
            self.log.count_dropped(candidate)
        self._waiting.clear()

    async def _work(self) -> None:
        while self._waiting:
            # It stays in the line while it is drawn, so that `close` counts it as dropped and `waiting` as waiting.
            id, candidate, messages, draw = self._waiting[0]
            response, failed = dict[str, Any](), ""
            try:
                response = await draw()
            except Refusal as refusal:
                failed = refusal.message
            except Exception as error:  # a candidate that fails is what a shadow is there to find
                get_logger(__name__).warning("the shadow answer of %s failed", candidate, exc_info=error)
                failed = f"{type(error).__name__}: {error}"
            self._waiting.popleft()
            self.log.keep_shadow(ShadowAnswer(id, candidate, messages, response, failed))
