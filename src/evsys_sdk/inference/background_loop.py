"""One event loop on its own thread, for all requests to servers.

Connections and rate limits of a client belong to one loop, while callers may have no loop or several in sequence. So
all requests run here, and callers wait for them.

    completion = await background_loop().call(request())   # in async code, on any loop
    completion = background_loop().run(request())          # in sync code, also while a loop is running
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any


class BackgroundLoop:
    """A running event loop; its thread starts with the first call and ends with the process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evsys-inference", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on this loop."""
        return threading.current_thread() is self._thread

    async def call[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` here and await it on the caller's loop; cancellation passes both ways."""
        if self.is_here:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` here and block until it is done."""
        if self.is_here:
            # Avoids Python's warning about a coroutine that was never awaited.
            work.close()
            raise RuntimeError("generate() would deadlock on the client's own event loop. Await complete() there.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C must not leave the request running
            raise

    def submit(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` here without waiting for it."""
        if self.process == os.getpid() and self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(work, self._loop)
        else:
            work.close()

    def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` here and wait for it if possible."""
        if self.is_here or self.process != os.getpid() or not self._thread.is_alive():
            self.submit(work)
        else:
            self.run(work)


_current: BackgroundLoop | None = None
_lock = threading.Lock()


def background_loop() -> BackgroundLoop:
    """The loop of this process; a forked child gets a new one, because threads do not survive a fork."""
    global _current
    with _lock:
        if _current is None or _current.process != os.getpid():
            _current = BackgroundLoop()
        return _current


def _forget() -> None:
    global _current, _lock
    _current, _lock = None, threading.Lock()  # the parent may have held the lock at that moment


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forget)
