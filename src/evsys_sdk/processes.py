"""Child processes: relay their output within limits, and kill them with all their descendants.

Used for commands with user code, arms, tools of the MCP server and programs on the host. The sandbox uses a PID
namespace instead.
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
"""Start of escape sequences other than colours and cursor movements, e.g. titles and the clipboard."""


class Relay:
    """Relays the output of a child: line by line, redacted, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pending = b""
        self.allow("the code of this project")

    def allow(self, who: str) -> None:
        """Reset the limit for the output of `who`."""
        self._who, self._left = who, self._most

    def feed(self, data: bytes) -> None:
        """Print complete lines to the current `sys.stderr`; empty data flushes the last line."""
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
    """Relay a child's output from a pipe, in a thread that ends with the pipe."""
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
    """Kill a process group and its leader, which may have left the group."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            end(leader, signal.SIGKILL)


def wait_for_end(pid: int, limit_s: float) -> None:
    """Wait until a killed process, not necessarily a child, has ended, so that its locks are released."""
    import select  # imported here, because most commands do not need it

    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], limit_s)
        finally:
            os.close(descriptor)


def adopt_orphans(*, on: bool = True) -> None:
    """Become the parent of orphaned descendants, if the system supports it."""
    _prctl(_ADOPT_ORPHANS, int(on))


def die_with_parent() -> None:
    """Let the system kill this process when its parent ends."""
    _prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def end_leftovers(group: int, *, keep: set[int] | None = None) -> None:
    """Kill the processes that an ended child left: its process group, and adopted orphans."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(100):  # children of a killed orphan are adopted too
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
        # Without `Path`, because most commands do not import `pathlib`.
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()
