"""A system call filter for everything that runs in a sandbox.

Namespaces and resource limits leave gaps: memory that belongs to no process (`memfd_create`), the host's key rings,
and corners of the kernel that have needed repair most often. The filter answers those calls as a kernel without them
would, which programs are prepared for. New user namespaces are refused, because inside one a process is root again.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .libc import PR_SET_SECCOMP, prctl

_EPERM, _ENOSYS = 1, 38
_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in what the kernel shows a filter
_CLONE_NEWUSER = 0x10000000
_X32 = 0x40000000  # x86_64 has a second numbering of all calls above this

_GENERIC = {
    "memfd_create": 279,
    "memfd_secret": 447,
    "keyctl": 219,
    "add_key": 217,
    "request_key": 218,
    "io_uring_setup": 425,
    "userfaultfd": 282,
    "bpf": 280,
    "perf_event_open": 241,
    "clone3": 435,
    "setns": 268,
    "unshare": 97,
    "clone": 220,
}
_X86_64 = {
    "memfd_create": 319,
    "memfd_secret": 447,
    "keyctl": 250,
    "add_key": 248,
    "request_key": 249,
    "io_uring_setup": 425,
    "userfaultfd": 323,
    "bpf": 321,
    "perf_event_open": 298,
    "clone3": 435,  # its flags are out of a filter's reach; the C library then uses `clone`
    "setns": 308,
    "unshare": 272,
    "clone": 56,
}
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
}
_BY_FLAGS = ("unshare", "clone")


class Filter:
    """The filter for this machine, ready to be installed after a fork."""

    def __init__(self) -> None:
        machine = os.uname().machine
        if machine not in _MACHINES:
            raise OSError(f"the sandbox has no system call filter for {machine}; it knows {', '.join(_MACHINES)}")
        self._code = program(*_MACHINES[machine])
        buffer = ctypes.create_string_buffer(self._code)
        self._header = ctypes.create_string_buffer(
            struct.pack("HL", len(self._code) // 8, ctypes.addressof(buffer)),
        )
        self._buffer = buffer  # the header points at it

    def install(self) -> None:
        """Bind this process and all it starts; needs `no_new_privs`."""
        prctl(PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(self._header))


def program(architecture: int, numbers: dict[str, int]) -> bytes:
    """The filter as the kernel wants it: eight bytes for each instruction."""
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _ERRNO | _ENOSYS),  # calls of a 32-bit program would have other numbers
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _ERRNO | _ENOSYS),
    ]
    for name, number in numbers.items():
        if name in _BY_FLAGS:
            code += [
                _instruction(_EQUAL, number, 0, 4),
                _instruction(_LOAD, _FIRST_ARGUMENT),
                _instruction(_ANY_BIT, _CLONE_NEWUSER, 0, 1),
                _instruction(_RETURN, _ERRNO | _EPERM),
                _instruction(_RETURN, _ALLOW),
            ]
        else:
            code += [
                _instruction(_EQUAL, number, 0, 1),
                _instruction(_RETURN, _ERRNO | (_EPERM if name == "setns" else _ENOSYS)),
            ]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
