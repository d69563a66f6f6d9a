"""Ctrl-C and a polite kill: the first asks for a clean stop with a checkpoint, the second does not ask."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...log import get_logger

INTERRUPTED = "interrupted"
_TURN_S = 0.05
"""How long a handler takes to be called in a main thread that is free."""
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
    handled = Counter[int]()

    def handle(signum: int, frame: Any) -> None:
        handled[signum] += 1
        if handled[signum] > 1:  # the second time it does what it would have done without us
            signal.signal(signum, before[signal.Signals(signum)])
            signal.raise_signal(signum)
            return
        interrupt.asked = True
        if interrupt.tell is not None:
            interrupt.tell(INTERRUPTED)

    with _answer_at_once(before, handled):
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # whoever started this in the background wants it to continue
                signal.signal(number, handle)
        try:
            yield interrupt
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _answer_at_once(before: Mapping[signal.Signals, Any], handled: Mapping[int, int]) -> Generator[None]:
    """Say that a request was heard, even while the main thread computes and can run no handler for a while.

    Python writes the number of each signal to a descriptor when it arrives, and a thread waits at the other end. Two
    that arrive before the main thread gets to the first are one call of its handler, so the second is sent again.
    """
    ours, theirs = socket.socketpair()
    # Python refuses a descriptor that could make a signal wait.
    theirs.setblocking(False)
    earlier = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    wanted = {number for number, handler in before.items() if handler is not signal.SIG_IGN}
    over = threading.Event()

    def answer() -> None:
        arrived = Counter[int]()
        while heard := ours.recv(1):
            if (number := heard[0]) not in wanted:
                continue
            if not arrived:
                get_logger(__name__).warning("%s", _HEARD)
            arrived[number] += 1
            if arrived[number] == 2:
                while not handled[number] and not over.wait(_TURN_S):
                    pass
                if not over.wait(_TURN_S) and handled[number] < 2:
                    os.kill(os.getpid(), number)

    thread = threading.Thread(target=answer, name="evsys-interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # In this order: a closed descriptor may be another file's by now, and a signal would be written into that.
        signal.set_wakeup_fd(earlier)
        theirs.close()
        # It ends when it reads the end of the connection; its own side must not be closed under it.
        thread.join()
        ours.close()
