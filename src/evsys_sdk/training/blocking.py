"""Run async code from sync code, in a script or in a notebook with a running event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any


def run_blocking[T](work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, on a new thread if a loop already runs here."""
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

    # Event loops do not nest. The thread gets the caller's context, which has the payer of inference answers.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="evsys-train")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]
