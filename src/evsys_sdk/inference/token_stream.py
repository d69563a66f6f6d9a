"""Streams the tokens of a sample from the sampling thread.

tokens = TokenStream()
sampling = asyncio.ensure_future(sample(replace(params, on_token=tokens.on_token)))
async for new in tokens.read(sampling): ...
[sample] = await sampling
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from ..backends.client import SampledToken

_READS = 128
"""Most reads of a long answer; each decodes the whole answer, so one per token would take quadratic time."""


class TokenStream:
    """Passes the tokens of one sample to the event loop that created it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._new: deque[SampledToken] = deque()
        self._is_read = True

    def on_token(self, token: SampledToken) -> bool:
        """Callback for `SamplingParams.on_token`; returns False, which ends the sample, when the reader has left."""
        self._new.append(token)
        with suppress(RuntimeError):  # the event loop was closed
            self._loop.call_soon_threadsafe(self._changed.set)
        return self._is_read

    async def read(self, sampling: asyncio.Future[Any]) -> AsyncIterator[list[SampledToken]]:
        """New tokens, until `sampling` has ended; the last ones may be only in its result."""
        sampling.add_done_callback(self._end)
        n_read = 0
        try:
            while not sampling.done():
                await self._changed.wait()
                self._changed.clear()
                if (count := len(self._new)) > n_read // _READS:
                    n_read += count
                    yield [self._new.popleft() for _ in range(count)]
        finally:
            self._is_read = False
            sampling.cancel()  # no effect if it has ended

    def _end(self, sampling: asyncio.Future[Any]) -> None:
        self._changed.set()
        if not sampling.cancelled():
            sampling.exception()  # marks the exception as retrieved if the reader has left
