"""Ctrl-C and a polite kill: the first asks for a clean stop with a checkpoint, the second does not ask."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...log import get_logger

INTERRUPTED = "interrupted"
_HEARD = "stopping after the current step, with a checkpoint; ask again to end at once"


@dataclass(slots=True)
class Interrupt:
    """Whether someone has asked to stop."""

    asked: bool = False
    tell: Callable[[str], None] | None = None
    """Called from the signal handler, so it must not wait for anything."""

    @property
    def reason(self) -> str | None:
        return INTERRUPTED if self.asked else None


@contextmanager
def stop_on_interrupt() -> Generator[Interrupt]:
    """Take SIGINT and SIGTERM as requests to stop, once each; only the main thread can."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    # None stands for a handler that was not set by Python, which cannot put it back.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    handled: set[int] = set()

    def handle(signum: int, frame: Any) -> None:
        if signum in handled:  # the second time it does what it would have done without us
            signal.signal(signum, before[signal.Signals(signum)])
            signal.raise_signal(signum)
            return
        is_first = not handled
        handled.add(signum)
        interrupt.asked = True
        if interrupt.tell is not None:
            interrupt.tell(INTERRUPTED)
        # Last, because it invites the second signal, which may come at once. In a thread, because this one may be
        # writing a line.
        if is_first:
            threading.Thread(target=get_logger(__name__).warning, args=("%s", _HEARD), daemon=True).start()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # a process in the background ignores Ctrl-C and continues
            signal.signal(number, handle)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
