"""Settings of the sandbox that a supervisor builds, from its first message."""

from __future__ import annotations

import os
import resource

from .libc import MS_BIND, MS_NODEV, MS_NOSUID, mount

# Resource limits per process, and the writable folders with a limit for all processes together.

_CPU_GRACE_S = 2
_BYTES_PER_FILE = 4096  # limits the number of files, so that empty files cannot fill kernel memory
_OPEN_FILES = 1024
_LOCKED = 8 * 1024 * 1024
_QUEUED = 819200  # bytes in POSIX message queues


class ProcessLimits:
    """Resource limits that a process and its children cannot raise."""

    def __init__(self, *, memory: int, processes: int, cpu_s: int, file_size: int) -> None:
        self._limits = (
            # Writable private memory, not address space, because Go, Java and V8 reserve far more than they use.
            (resource.RLIMIT_DATA, memory, memory),
            (resource.RLIMIT_NPROC, processes, processes),
            (resource.RLIMIT_CPU, cpu_s, cpu_s + _CPU_GRACE_S),
            (resource.RLIMIT_FSIZE, file_size, file_size),
            (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
            (resource.RLIMIT_MSGQUEUE, _QUEUED, _QUEUED),
            (resource.RLIMIT_MEMLOCK, _LOCKED, _LOCKED),
            (resource.RLIMIT_CORE, 0, 0),
        )

    def apply(self) -> None:
        for kind, soft, hard in self._limits:
            highest = resource.getrlimit(kind)[1]
            if highest != resource.RLIM_INFINITY:
                soft, hard = min(soft, highest), min(hard, highest)
            resource.setrlimit(kind, (soft, hard))


def mount_storage(folders: list[str], size: int) -> None:
    """Make `folders` writable with a tmpfs of limited total size, which is freed with the sandbox.

    They are folders of one file system, which is mounted at `/tmp` and then hidden by its own folder for `/tmp`.
    """
    # bwrap can limit only the size of each separate file system, and not the number of files.
    options = f"size={size},nr_inodes={max(1024, size // _BYTES_PER_FILE)},mode=0755"
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options)
    for number, folder in enumerate(sorted(folders, key=lambda folder: folder == "/tmp")):
        part = f"/tmp/{number}"
        os.mkdir(part)
        os.chmod(part, 0o1777 if folder in ("/tmp", "/dev/shm") else 0o755)
        mount(part, folder, flags=MS_BIND)


def limit_network_buffers(longest: int) -> None:
    """Limit the two buffers of a TCP connection to `longest` bytes in total, as for other sockets."""
    for name in ("tcp_rmem", "tcp_wmem"):
        with open(f"/proc/sys/net/ipv4/{name}", "w", encoding="utf-8") as file:
            file.write(f"4096 65536 {longest // 2}")


TYPE_CHECKING = False
if TYPE_CHECKING:
    from .wire import Message


class Settings:
    """The fields of the first message."""

    def __init__(self, message: Message) -> None:
        self.bwrap: str = message["bwrap"]
        self.uid: int | None = None if message["uid"] < 0 else message["uid"]
        self.user: int = message["user"]
        self.mounts: list[str] = message["mounts"]
        generated: list[str] = message["generated"]
        self.generated = {path: content.encode() for path, content in zip(generated[::2], generated[1::2], strict=True)}
        self.writable: list[str] = message["writable"]
        self.workdir: str = message["workdir"]
        self.disk: int = message["disk"]
        self.memory: int = message["memory"]
        limits = {name: message[name] for name in ("memory", "processes", "cpu_s", "file_size")}
        self.limits = ProcessLimits(**limits)
        self.control_group: str = message["control_group"]
        self.start_timeout_s: float = message["start_timeout_s"]
