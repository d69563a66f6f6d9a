"""Joining the namespaces that bwrap made, and giving up what joining them grants."""

from __future__ import annotations

import fcntl
import os

from .libc import drop_bounding_set

_NS_GET_USERNS = 0xB701
_ISOLATED = ("user", "mnt", "pid", "net", "ipc", "uts")
_JOINED = ("uts", "net", "mnt")  # the mounts last: after them, /proc is another one


def check_isolation(pid: int, parent: int) -> None:
    """Refuse a process that `parent` did not start, or that shares a namespace with this one."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        if f"PPid:\t{parent}\n" not in file:
            raise OSError(f"bwrap named a process that it did not start ({pid})")
    shared = [kind for kind in _ISOLATED if _namespace(pid, kind) == _namespace("self", kind)]
    if shared:
        raise OSError(f"bwrap started a process that is not isolated: it shares the namespaces {', '.join(shared)}")


def _namespace(pid: int | str, kind: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino


class Namespaces:
    """The namespaces of the process `pid`; this process joins those of files, network and name, and forks join `user`.

    bwrap sets the sandbox up as root of one user namespace and then runs it in another one below, where it is nobody
    special. The supervisor stays in the first, where it may still mount and make PID namespaces.
    """

    def __init__(self, pid: int) -> None:
        opened = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in (*_JOINED, "user")}
        owner = fcntl.ioctl(opened["mnt"], _NS_GET_USERNS)
        os.setns(owner, os.CLONE_NEWUSER)
        for kind in _JOINED:
            os.setns(opened[kind])
            os.close(opened[kind])
        same = os.path.samestat(os.fstat(owner), os.fstat(opened["user"]))
        self._inner_user = None if same else opened["user"]
        os.close(owner)
        os.chdir("/")

    def enter(self) -> None:
        """Become an ordinary process of the sandbox, for good; call it after a fork."""
        if self._inner_user is not None:
            os.setns(self._inner_user, os.CLONE_NEWUSER)
        drop_bounding_set()
