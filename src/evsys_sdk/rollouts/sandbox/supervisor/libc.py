"""System calls that Python's `os` lacks."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 1, 2, 4, 8, 4096
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
CLONE_PARENT, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWPID = 0x8000, 0x02000000, 0x08000000, 0x20000000
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64
_CLOSE_RANGE, _CLOEXEC = 436, 4
_OPENAT2, _HERE, _NO_MAGIC_LINKS = 437, -100, 2
_CLONE = 56 if os.uname().machine == "x86_64" else 220
_IPC_RMID = 0
_ARG_START = 45  # index among the fields after the name in /proc/PID/stat
_SIGINT, _SIGPIPE, _SIGCHLD, _SIGXFSZ = 2, 13, 17, 25
_SIG_DFL, _SIG_IGN = None, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.mount.argtypes = [*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.syscall.argtypes = [ctypes.c_long, *[ctypes.c_ulong] * 5]
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, argument: int = 0, pointer: int = 0) -> None:
    """Call prctl; raise OSError on failure."""
    _check(_libc.prctl(option, argument, pointer, 0, 0), None)


def restore_signals() -> None:
    """Restore the default handlers of signals that Python changes, so that child programs behave as in a shell."""
    for signal in (_SIGINT, _SIGPIPE, _SIGXFSZ):
        _libc.signal(signal, _SIG_DFL)


def hide_arguments() -> None:
    """Erase the command line of this process, which would reveal host paths inside the sandbox."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)


def wait_for_ever() -> NoReturn:
    """Wait forever with default signal handlers; the kernel reaps orphans, because SIGCHLD is ignored."""
    restore_signals()
    _libc.signal(_SIGCHLD, _SIG_IGN)
    while True:
        _libc.pause()


def clone(flags: int) -> int:
    """Fork with clone flags; only for single-threaded processes."""
    pid = _libc.syscall(_CLONE, flags | _SIGCHLD, 0, 0, 0, 0)
    _check(pid, None)
    return pid


def keep_descriptors_from_programs() -> None:
    """Set close-on-exec on all descriptors except 0, 1 and 2."""
    if _libc.syscall(_CLOSE_RANGE, 3, 0xFFFFFFFF, _CLOEXEC, 0, 0) < 0:  # before Linux 5.11
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.set_inheritable(int(name), False)
                except OSError:  # the descriptor of the listing itself
                    pass


def close_streams() -> None:
    """Redirect descriptors 0, 1 and 2 to /dev/null."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def open_plain(path: str, flags: int, mode: int = 0) -> int:
    """Open a file without following magic links of /proc."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, _NO_MAGIC_LINKS)
    arguments = ctypes.addressof(name), ctypes.addressof(how), ctypes.sizeof(how)
    descriptor = _libc.syscall(_OPENAT2, _HERE, *arguments, 0)
    _check(descriptor, path)
    return descriptor


def close_descriptors() -> None:
    """Close all descriptors except 0, 1 and 2."""
    if _libc.syscall(_CLOSE_RANGE, 3, 0xFFFFFFFF, 0, 0, 0) < 0:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def drop_bounding_set() -> None:
    """Prevent programs started from this process from gaining capabilities."""
    for capability in range(_MOST_CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # the kernel has no further capabilities
            break
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Irreversibly drop all capabilities."""
    drop_bounding_set()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), None)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system at `target`, or a folder with MS_BIND."""
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()), target)


def unmount(target: str) -> None:
    """Unmount the topmost mount at `target`."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def remove_shared_memory(identifier: int) -> None:
    """Mark a System V shared memory segment for removal."""
    _check(_libc.shmctl(identifier, _IPC_RMID, None), None)


def _check(result: int, path: str | None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
