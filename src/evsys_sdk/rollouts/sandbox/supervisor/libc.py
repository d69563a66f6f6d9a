"""The system calls that Python's `os` does not have."""

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
_ARG_START = 45  # of the fields after the name in /proc/PID/stat
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
    """Change a property of this process."""
    _check(_libc.prctl(option, argument, pointer, 0, 0), None)


def restore_signals() -> None:
    """Undo what Python changes for itself, so that programs started from here end as they would from a shell."""
    for signal in (_SIGINT, _SIGPIPE, _SIGXFSZ):
        _libc.signal(signal, _SIG_DFL)


def hide_arguments() -> None:
    """Forget the command line, which forks in the sandbox would show there, with paths of this machine."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)


def wait_for_ever() -> NoReturn:
    """Do nothing but let the kernel bury orphans; every other signal does what it does by default."""
    restore_signals()
    _libc.signal(_SIGCHLD, _SIG_IGN)
    while True:
        _libc.pause()


def clone(flags: int) -> int:
    """Fork with flags that `os.fork` does not take; for processes with one thread."""
    pid = _libc.syscall(_CLONE, flags | _SIGCHLD, 0, 0, 0, 0)
    _check(pid, None)
    return pid


def keep_descriptors_from_programs() -> None:
    """Have every descriptor but 0, 1 and 2 closed when this process becomes another program."""
    if _libc.syscall(_CLOSE_RANGE, 3, 0xFFFFFFFF, _CLOEXEC, 0, 0) < 0:  # before Linux 5.11
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.set_inheritable(int(name), False)
                except OSError:  # the one that listed the folder
                    pass


def close_streams() -> None:
    """Let 0, 1 and 2 lead nowhere."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)


def open_plain(path: str, flags: int, mode: int = 0) -> int:
    """Open a file, and follow no link of /proc that leads elsewhere than it names."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, _NO_MAGIC_LINKS)
    arguments = ctypes.addressof(name), ctypes.addressof(how), ctypes.sizeof(how)
    descriptor = _libc.syscall(_OPENAT2, _HERE, *arguments, 0)
    _check(descriptor, path)
    return descriptor


def close_descriptors() -> None:
    """Release every descriptor but 0, 1 and 2."""
    if _libc.syscall(_CLOSE_RANGE, 3, 0xFFFFFFFF, 0, 0, 0) < 0:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def drop_bounding_set() -> None:
    """Make sure that no program that is started from here gains a capability."""
    for capability in range(_MOST_CAPABILITIES):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # this kernel has no more of them
            break
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every privilege, for good."""
    drop_bounding_set()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), None)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or with MS_BIND another folder, at `target`."""
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode()), target)


def unmount(target: str) -> None:
    """Take away what is mounted last at `target`."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def remove_shared_memory(identifier: int) -> None:
    """Mark a System V shared memory segment for removal."""
    _check(_libc.shmctl(identifier, _IPC_RMID, None), None)


def _check(result: int, path: str | None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
