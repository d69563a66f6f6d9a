"""Async code called from sync code, wherever that is: a script, or a notebook whose own event loop is running."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any


def run_blocking[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end; where a loop already runs, on its own thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    outcome: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work()))
        except BaseException as error:
            errors.append(error)

    # No loop runs inside another. The thread continues in the context of who asked: who pays for answers is kept there.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="evsys-train")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]
