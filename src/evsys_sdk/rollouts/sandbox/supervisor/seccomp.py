"""A seccomp filter for all processes of a sandbox, including the first one.

Namespaces and resource limits leave gaps: inspecting other processes, memory that belongs to no process, the host's key
rings, and kernel features with many vulnerabilities. Calls for privileged programs and calls that create namespaces
fail with EPERM. Rarely needed calls fail with ENOSYS, as on a kernel without them, which programs can handle. Only
Unix, IPv4 and IPv6 sockets are available.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .libc import PR_SET_SECCOMP, prctl

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_MODE_FILTER = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32  # in struct seccomp_data
_X32 = 0x40000000  # first number of the x32 calls of x86_64

_NEW_NAMESPACES = 0x7E020000
_NEW_TIME_NAMESPACE = 0x80  # only for `unshare`: in `clone` these bits are the exit signal
_CLONE_PARENT = 0x8000  # would give the supervisor, the parent of commands, unknown children
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_SOL_SOCKET = 1
_BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE

# name: (number on x86_64, number on other machines); None if the call does not exist.
type _Numbers = dict[str, tuple[int | None, int | None]]

_REFUSED: _Numbers = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "iopl": (172, None),
    "ioperm": (173, None),
}
_NOT_THERE: _Numbers = {
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),  # pins huge pages that are not charged to a process
    "msgget": (68, 186),  # System V queues and semaphores use kernel memory that no limit includes
    "semget": (64, 190),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "clone3": (435, 435),  # a filter cannot check its flags; the C library falls back to `clone`
}
_BY_ARGUMENT: _Numbers = {
    "clone": (56, 220),
    "unshare": (272, 97),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "prlimit64": (302, 261),
}
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1), "riscv64": (0xC00000F3, 1)}


class Filter:
    """The filter program for this machine, to be installed after a fork."""

    def __init__(self) -> None:
        machine = os.uname().machine
        if machine not in MACHINES:
            raise OSError(f"the sandbox has no system call filter for {machine}; it knows {', '.join(MACHINES)}")
        self.code = program(machine)
        buffer = ctypes.create_string_buffer(self.code)
        self._header = ctypes.create_string_buffer(
            struct.pack("HL", len(self.code) // 8, ctypes.addressof(buffer)),
        )
        self._buffer = buffer  # keeps the memory alive that the header points to

    def install(self) -> None:
        """Install the filter for this process and its children; requires `no_new_privs`."""
        prctl(PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(self._header))


def numbers(table: _Numbers, machine: str) -> dict[str, int]:
    """Return the calls of a table that exist on a machine, with their numbers."""
    column = MACHINES[machine][1]
    return {name: number for name, both in table.items() if (number := both[column]) is not None}


def program(machine: str) -> bytes:
    """Return the filter as a BPF program, eight bytes per instruction."""
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, MACHINES[machine][0], 1, 0),
        _refuse(_ENOSYS),  # calls of 32-bit programs have different numbers
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        _refuse(_ENOSYS),
    ]
    for table, error in ((_REFUSED, _EPERM), (_NOT_THERE, _ENOSYS)):
        for number in numbers(table, machine).values():
            # Jump offsets count from the next instruction: if equal, fall through to the refusal; otherwise skip it.
            code += [_instruction(_EQUAL, number, 0, 1), _refuse(error)]
    for name, number in numbers(_BY_ARGUMENT, machine).items():
        decision = _decide_by_argument(name)
        code += [_instruction(_EQUAL, number, 0, len(decision) + 1), _instruction(_LOAD, _FIRST_ARGUMENT), *decision]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _decide_by_argument(name: str) -> list[bytes]:
    """Return the instructions after loading the first argument; they always end with a return."""
    allow = _instruction(_RETURN, _ALLOW)
    match name:
        case "clone" | "unshare":
            flags = _NEW_NAMESPACES | (_NEW_TIME_NAMESPACE if name == "unshare" else _CLONE_PARENT)
            return [_instruction(_ANY_BIT, flags, 0, 1), _refuse(_EPERM), allow]
        case "setsockopt":  # requests to change the buffer size have no effect but seem to succeed
            tests = [
                _instruction(_EQUAL, option, len(_BUFFER_SIZES) - at, 0) for at, option in enumerate(_BUFFER_SIZES)
            ]
            only_sockets = [_instruction(_LOAD, _SECOND_ARGUMENT), _instruction(_EQUAL, _SOL_SOCKET, 0, len(tests) + 1)]
            return [*only_sockets, _instruction(_LOAD, _THIRD_ARGUMENT), *tests, allow, _refuse(0)]
        case "prlimit64":  # only for PID 0, the calling process
            return [_instruction(_EQUAL, 0, 1, 0), _refuse(_EPERM), allow]
        case _:
            tests = [_instruction(_EQUAL, family, len(_FAMILIES) - at, 0) for at, family in enumerate(_FAMILIES)]
            return [*tests, _refuse(_EAFNOSUPPORT), allow]


def _refuse(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
