"""SIGINT and SIGTERM: the first signal asks for a clean stop with a checkpoint, the second ends the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...log import get_logger

INTERRUPTED = "interrupted"
_STOPPING = "stopping after the current step, with a checkpoint; interrupt again to stop at once"


@dataclass(slots=True)
class Interrupt:
    """A request to stop."""

    is_requested: bool = False
    stop: Callable[[str], None] | None = None
    """Called from the signal handler, so it must not block."""

    @property
    def reason(self) -> str | None:
        return INTERRUPTED if self.is_requested else None


@contextmanager
def stop_on_interrupt() -> Generator[Interrupt]:
    """Take the first SIGINT and SIGTERM as requests to stop; without effect outside the main thread."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    # None means that the handler was not set by Python; it cannot be restored.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    handled: set[int] = set()

    def handle(signum: int, frame: Any) -> None:
        if signum in handled:  # the second signal gets the handler of before
            signal.signal(signum, before[signal.Signals(signum)])
            signal.raise_signal(signum)
            return
        is_first = not handled
        handled.add(signum)
        interrupt.is_requested = True
        if interrupt.stop is not None:
            interrupt.stop(INTERRUPTED)
        # Last, because the message invites a second signal. In a thread, because this one may hold the log's lock.
        if is_first:
            threading.Thread(target=get_logger(__name__).warning, args=("%s", _STOPPING), daemon=True).start()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a background process ignores Ctrl-C
            signal.signal(number, handle)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
