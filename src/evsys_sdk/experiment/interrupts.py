"""Ctrl-C and a polite kill: the first asks for a clean stop with a checkpoint, the second does not ask."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..log import get_logger

INTERRUPTED = "interrupted"


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
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(signum: int, frame: Any) -> None:
        signal.signal(signum, before[signal.Signals(signum)])
        interrupt.asked = True
        get_logger(__name__).warning("stopping after the current step, with a checkpoint; ask again to end at once")
        if interrupt.tell is not None:
            interrupt.tell(INTERRUPTED)

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # whoever started this in the background wants it to go on
            signal.signal(number, handle)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
