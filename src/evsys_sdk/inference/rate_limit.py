"""Limits of one client: requests at once, requests a minute, tokens a minute, and a pause when the server asks for one.

Counts are kept over a sliding minute, so no 60 seconds ever hold more than the limit. Requests enter in the order they
came. A request reserves an estimate of its tokens and gives back the difference once the real number is known.

    limiter = RateLimiter(concurrency=8, tokens_per_minute=100_000)
    async with limiter.place():                          # for the whole of a call, with all its attempts
        slot = await limiter.slot(tokens=1_500)          # before each attempt
        ...
        slot.note_used(1_211)

All calls belong on one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

_MINUTE = 60.0


class Slot:
    """One request that was let through."""

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at, self.tokens = at, tokens

    def note_used(self, tokens: int) -> None:
        """Replace the estimate by what the request really took."""
        self.tokens = tokens


class RateLimiter:
    """Lets requests through as fast as the limits allow."""

    def __init__(
        self,
        concurrency: int,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._requests, self._tokens = requests_per_minute, tokens_per_minute
        self._clock, self._sleep = clock, sleep
        self._places = asyncio.Semaphore(concurrency)
        self._turn = asyncio.Lock()
        self._recent: deque[Slot] = deque()
        self._paused_until = float("-inf")

    def place(self) -> asyncio.Semaphore:
        """One of the places for calls in progress; a context to hold it in."""
        return self._places

    async def slot(self, tokens: int = 0) -> Slot:
        """Wait until a request of this size may be sent."""
        # One waits and the others stand behind it: otherwise small requests could overtake a large one permanently.
        async with self._turn:
            # Asked again after each sleep: the server may have asked for a pause meanwhile.
            while (wait := self._wait(tokens)) > 0:
                await self._sleep(wait)
            slot = Slot(self._clock(), tokens)
            # Without a limit no one asks for them, and they would only pile up.
            if self._requests is not None or self._tokens is not None:
                self._recent.append(slot)
            return slot

    def pause(self, seconds: float) -> None:
        """Let nothing through for this long."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def _wait(self, tokens: int) -> float:
        now = self._clock()
        while self._recent and self._recent[0].at <= now - _MINUTE:
            self._recent.popleft()
        wait = self._paused_until - now
        if self._requests is not None and len(self._recent) >= self._requests:
            # When this one has left the minute, there is room for one more.
            wait = max(wait, self._recent[-self._requests].at + _MINUTE - now)
        if self._tokens is not None:
            wait = max(wait, self._wait_for_tokens(tokens, self._tokens, now))
        return wait

    def _wait_for_tokens(self, tokens: int, limit: int, now: float) -> float:
        # A request that is larger than the limit waits until it is alone; the server decides about it.
        excess = sum(slot.tokens for slot in self._recent) + min(tokens, limit) - limit
        wait = 0.0
        for slot in self._recent:
            if excess <= 0:
                break
            excess -= slot.tokens
            wait = slot.at + _MINUTE - now
        return wait
