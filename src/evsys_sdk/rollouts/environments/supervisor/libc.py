"""The system calls that Python's `os` does not have."""

from __future__ import annotations

import ctypes
import os

MS_NOSUID, MS_NODEV, MS_BIND = 2, 4, 4096
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_IPC_RMID = 0
_SIGPIPE, _SIGXFSZ = 13, 25
_SIG_DFL = None

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]


def prctl(option: int, argument: int = 0, pointer: int = 0) -> None:
    """Change a property of this process."""
    _check(_libc.prctl(option, argument, pointer, 0, 0), None)


def restore_signals() -> None:
    """Undo what Python ignores for itself, so that programs started from here end as they would from a shell."""
    for signal in (_SIGPIPE, _SIGXFSZ):
        _libc.signal(signal, _SIG_DFL)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or with MS_BIND another folder, at `target`."""
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()), target)


def remove_shared_memory(identifier: int) -> None:
    """Mark a System V shared memory segment for removal."""
    _check(_libc.shmctl(identifier, _IPC_RMID, None), None)


def _check(result: int, path: str | None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
