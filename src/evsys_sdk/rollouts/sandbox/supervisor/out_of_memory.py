"""Who goes first when memory runs out, of the machine or of a control group: commands, then the supervisor."""

from __future__ import annotations

import os

from .libc import PR_SET_DUMPABLE, prctl

_SUPERVISOR, _COMMAND = b"900", b"1000"
_host_proc = -1


def give_way() -> None:
    """Let this process, and what it forks, be ended before others; call it while /proc is the host's."""
    global _host_proc
    _host_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    _write(_SUPERVISOR)


def give_way_first() -> None:
    """Let this process be ended before the supervisor; for a fork that is still a stranger to the sandbox.

    The file belongs to a process that may be looked into, so for a moment this one may: but only by who has rights in
    its user namespace, which is not the one of the sandbox's processes yet.
    """
    prctl(PR_SET_DUMPABLE, 1)
    try:
        _write(_COMMAND)
    finally:
        prctl(PR_SET_DUMPABLE, 0)


def _write(score: bytes) -> None:
    try:
        file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=_host_proc)
    except OSError:  # a kernel or a container without it; then all are equal
        return
    try:
        os.write(file, score)
    except OSError:
        pass
    finally:
        os.close(file)
