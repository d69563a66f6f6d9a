"""Child processes: what they print is passed on within limits, and they end with all that they have started.

This is the one home of it for commands with user code, arms, tools of the MCP server and programs on the host. The
sandbox has its own in the kernel: a PID namespace.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from .redact import redact_text

_ADOPT_ORPHANS: Final = 36  # PR_SET_CHILD_SUBREAPER
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
_LONGEST_LINE = 100_000
_ESCAPE = re.compile(r"\x1b(?!\[[\d;]*[A-DKm])|[\x90\x9b\x9d]")
"""Begins what a terminal obeys, other than colours and the movements of a progress bar: titles, the clipboard."""


class Relay:
    """Passes on what a child prints: line by line, without secrets, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pending = b""
        self.allow("the code of this project")

    def allow(self, who: str) -> None:
        """From now on `who` prints, and has the whole limit."""
        self._who, self._left = who, self._most

    def feed(self, data: bytes) -> None:
        """Print the whole lines so far to `sys.stderr`, as it is now; no data ends the last line."""
        text = self._pending + data
        end = len(text) if not data or len(text) > _LONGEST_LINE else text.rfind(b"\n") + 1
        self._pending = text[end:]
        room, self._left = self._left, self._left - end
        if not end or room <= 0:
            return
        shown = _ESCAPE.sub("\N{REPLACEMENT CHARACTER}", redact_text(text[: min(end, room)].decode("utf-8", "replace")))
        if self._left <= 0:
            shown += f"\n{self._who} printed more than {self._most} bytes; the rest is not shown.\n"
        with suppress(OSError, ValueError):
            sys.stderr.write(shown)
            sys.stderr.flush()


def pass_on(descriptor: int, relay: Relay) -> threading.Thread:
    """Relay what a child writes to a pipe, in a thread that ends with the pipe."""
    source = os.dup(descriptor)

    def run() -> None:
        with open(source, "rb", buffering=0) as pipe:
            while data := pipe.read(1 << 16):
                relay.feed(data)
        relay.feed(b"")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def kill_group(leader: int) -> None:
    """Kill a process and its group, which it may have left."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(leader, signal.SIGKILL)


def wait_for_end(pid: int, limit_s: float) -> None:
    """Wait until a process that was killed is dead, so that it holds no lock any more; it need not be our child."""
    import select  # here, because most commands start without it

    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], limit_s)
        finally:
            os.close(descriptor)


def adopt_orphans(*, on: bool = True) -> None:
    """Become the parent of what children of this process leave behind, where the system can do that."""
    _prctl(_ADOPT_ORPHANS, int(on))


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends."""
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def end_leftovers(group: int, *, keep: set[int] | None = None) -> None:
    """Kill what an ended child has left running: its process group, and orphans that came to this process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(100):  # the children of an orphan come to us when it is killed
        with suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not (left := _children() - (keep or set())):
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> set[int]:
    try:
        # Not with a `Path`: most commands start without `pathlib`.
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()
