"""Waiting for something that happens soon, without guessing how soon."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

_PATIENCE_S = 20.0


async def until(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Returns when the condition holds; a test that waits in vain fails."""
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            value = condition()
            if await value if inspect.isawaitable(value) else value:
                return
            await asyncio.sleep(0.01)
