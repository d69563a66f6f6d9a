"""A sandbox on this machine without a container engine: bubblewrap's namespaces, limits and a filter of system calls.

environment: { kind: bwrap, params: { memory_mb: 1024, timeout_s: 30 } }

The sandbox has no network except loopback, and no host process, variable or home folder. The system is read-only; the
writable folders (the working folder, /tmp, /tests, /logs, /solution, /dev/shm) are in memory. It works as root and as
an ordinary user if the kernel allows user namespaces; control groups are optional.

Effects of the limits, none of which a command can raise:

| limit | enforced by | effect |
|---|---|---|
| `timeout_s` | the supervisor | its process group is killed; `timed_out`, exit code 124 |
| `memory_mb`, one process | the kernel (RLIMIT_DATA) | allocating fails |
| `memory_mb` + 32, all processes | the supervisor, 100 times a second | the largest is killed (137); stderr says so |
| `processes` | the kernel (RLIMIT_NPROC) | `fork` fails |
| `cpu_s`, one process | the kernel (RLIMIT_CPU) | ended by SIGXCPU, exit code 152 |
| `disk_mb`, all files | the kernel (size and inodes of the file system) | writing fails: no space left |
| `file_mb`, one file | the kernel (RLIMIT_FSIZE) | ended by SIGXFSZ, exit code 153 |
| `max_output_bytes` | the supervisor | the middle is replaced by a line with its size; the command continues |
| `max_read_mb`, one file | the supervisor | none inside; reading the file from outside is an error |

Background processes keep running between commands until `kill_processes` or `stop`; a command ends with its shell.
docs/isolation.md has the guarantees and their limits.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from ...config.base import Strict
from ..environment import EnvironmentFileError, EnvironmentFileNotFoundError, ExecResult, SandboxError, upload_dir

if TYPE_CHECKING:
    from ..sandbox.client import Answer, SupervisorClient
    from ..sandbox.supervisor.wire import Value

_MB = 1024 * 1024
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNPRIVILEGED = 65534  # the sandbox's user on the host if the host's user is root
_FILE_TIMEOUT_S = 60.0
_LONGEST_COMMAND = 128 * 1024 - 1  # Linux's limit for one argument
_REASONS = {
    errno.EINVAL: "it is not a regular file",
    errno.ENXIO: "it is not a regular file",
    errno.EFBIG: "it is larger than a file that is read may be (`max_read_mb`)",
}
_SYSTEM_FOLDERS = ("/usr", "/etc", "/proc", "/dev", "/sys", "/bin", "/sbin", "/lib", "/lib64", "/run")


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
        raise ValueError("should be an absolute path without '..'. Write it like /app.")
    return str(PurePosixPath(path))


def _outside_the_system(path: str) -> str:
    if path == "/" or any(PurePosixPath(path).is_relative_to(folder) for folder in _SYSTEM_FOLDERS):
        raise ValueError("this folder belongs to the read-only system; choose another, such as /app.")
    return path


type AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class BwrapConfig(Strict):
    """Params of the `bwrap` environment."""

    workdir: Annotated[AbsolutePath, AfterValidator(_outside_the_system)] = "/app"
    """Writable folder in which commands run."""
    files: dict[str, str] = {}
    """Files present from the start: path -> content; relative paths start at `workdir`."""
    env: dict[str, str] = {}
    """Variables of every command; none of the host's are passed on."""
    rootfs: AbsolutePath | None = None
    """Folder with an unpacked image to use as the system instead of the host's /usr."""
    read_only: list[AbsolutePath] = []
    """Additional host folders to mount read-only at the same path."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Default time limit of a command."""
    memory_mb: int = Field(default=2048, ge=16)
    """Memory of one process; all processes together may use 32 MB more."""
    disk_mb: int = Field(default=1024, ge=1)
    """Total size of all files, which are kept in memory."""
    file_mb: int = Field(default=512, ge=1)
    """Size of one file."""
    max_read_mb: int = Field(default=64, ge=1)
    """Largest file that can be read from outside, such as a reward; a larger one is an error."""
    processes: int = Field(default=256, ge=4)
    """Maximum number of concurrent processes and threads."""
    cpu_s: int = Field(default=600, ge=1)
    """Processor time of one process, in seconds."""
    max_output_bytes: int = Field(default=1_000_000, ge=1)
    """Bytes kept of stdout and of stderr: the beginning and the end."""
    start_timeout_s: float = Field(default=30.0, gt=0)
    """Time limit for the start of the sandbox."""
    control_group: bool = True
    """Whether the kernel limits the sandbox's total memory, if this user may create a control group."""
    bwrap: str = Field(default="bwrap", min_length=1)
    """Name or path of the bubblewrap program."""


class BwrapEnvironment:
    """A sandbox on this machine: no network, read-only system, limited memory, disk, processes and time."""

    name: ClassVar[str] = "bwrap"
    Config = BwrapConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = BwrapConfig(**params)
        self._client: SupervisorClient | None = None

    async def start(self) -> None:
        from ..sandbox.client import SupervisorClient

        if self._client is not None:
            raise SandboxError("This sandbox was started before; make a new one for each task.")
        cfg, settings = self.cfg, self._settings()
        self._client = SupervisorClient(longest_answer=max(4 * cfg.max_output_bytes, cfg.max_read_mb * _MB) + _MB)
        group_memory = (cfg.memory_mb + cfg.disk_mb) * _MB if cfg.control_group else None
        try:
            answer = await self._client.start(settings, group_memory=group_memory, timeout_s=cfg.start_timeout_s)
            if answer.problem:
                from ..sandbox.start_problems import explain

                raise SandboxError(explain(answer.problem))
            await self._fill()
        except BaseException:
            await self.stop()
            raise

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        if "\0" in command:
            return ExecResult("", "The command holds a NUL character, which no shell can run.", 126)
        if len(command.encode("utf-8", "replace")) > _LONGEST_COMMAND:
            return ExecResult("", "The command is longer than 128 kB. Write it to a file and run that.", 126)
        home = {"PATH": _PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "xterm", "USER": "agent", "SHELL": "/bin/sh"}
        variables = {**home, **self.cfg.env, **(env or {})}
        request: dict[str, Value] = {
            "op": "exec",
            "command": command.encode("utf-8", "replace"),
            "cwd": self._inside(cwd or "."),
            "env": [text for pair in variables.items() for text in _check_variable(*pair)],
            "limit": self.cfg.max_output_bytes,
        }
        answer = await self._request(request, self.cfg.timeout_s if timeout_s is None else timeout_s)
        errors = answer.stderr.decode("utf-8", "replace")
        return ExecResult(
            answer.stdout.decode("utf-8", "replace"),
            "\n".join([*filter(None, [errors]), *(f"[sandbox] {note}" for note in answer.notes)]),
            answer.exit_code,
            timed_out=answer.timed_out,
        )

    async def write_file(self, path: str, data: bytes | str) -> None:
        content = data.encode() if isinstance(data, str) else bytes(data)
        request: dict[str, Value] = {"op": "write", "path": self._inside(path), "data": content, "limit": 0}
        _check_file(await self._request(request, _FILE_TIMEOUT_S), "written", path)

    async def read_file(self, path: str) -> bytes:
        request: dict[str, Value] = {"op": "read", "path": self._inside(path), "limit": self.cfg.max_read_mb * _MB}
        answer = await self._request(request, _FILE_TIMEOUT_S)
        _check_file(answer, "read", path)
        return answer.stdout

    async def kill_processes(self) -> None:
        """Kill all processes in the sandbox and keep its files; afterwards nothing writes any more."""
        await self._request({"op": "kill", "limit": 0}, _FILE_TIMEOUT_S)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _fill(self) -> None:
        if self.cfg.rootfs is not None:
            image_workdir = Path(self.cfg.rootfs, self.cfg.workdir.lstrip("/"))
            if image_workdir.is_dir():
                await upload_dir(self, image_workdir, self.cfg.workdir)
        for path, content in self.cfg.files.items():
            await self.write_file(path, content)

    async def _request(self, message: Mapping[str, Value], timeout_s: float) -> Answer:
        if self._client is None:
            raise SandboxError("The sandbox is not running; call `await environment.start()` first.")
        answer = await self._client.request(message, timeout_s=timeout_s)
        if answer.problem:
            raise SandboxError(f"The sandbox failed: {answer.problem}.")
        return answer

    def _inside(self, path: str) -> str:
        if not path or "\0" in path:
            raise EnvironmentFileError(f"{path!r} is not a path: it is empty or holds a NUL character.")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise EnvironmentFileError(f"{path!r} is not a path: it cannot be written as bytes.") from None
        return str(PurePosixPath(self.cfg.workdir, path))

    def _settings(self) -> dict[str, Value]:
        from ..sandbox import root_filesystem as root

        cfg = self.cfg
        writable = [*root.HARBOR_FOLDERS, "/tmp", "/dev/shm"]
        if not any(PurePosixPath(cfg.workdir).is_relative_to(folder) for folder in writable):
            writable.append(cfg.workdir)
        mounts = root.host_mounts() if cfg.rootfs is None else root.image_mounts(Path(cfg.rootfs), writable)
        return {
            "bwrap": find_bwrap(cfg.bwrap),
            "uid": _UNPRIVILEGED if os.geteuid() == 0 else -1,
            "mounts": [*mounts, *root.extra_mounts(cfg.read_only, writable)],
            "generated": [text for pair in root.GENERATED.items() for text in pair] if cfg.rootfs is None else [],
            "user": root.UID,
            "writable": writable,
            "workdir": cfg.workdir,
            "disk": cfg.disk_mb * _MB,
            "memory": cfg.memory_mb * _MB,
            "processes": cfg.processes,
            "cpu_s": cfg.cpu_s,
            "file_size": cfg.file_mb * _MB,
            "start_timeout_s": cfg.start_timeout_s,
        }


def find_bwrap(name: str) -> str:
    """The path of the program; raises SandboxError if it is missing."""
    path = shutil.which(name) if sys.platform == "linux" else None
    if path is None:
        from ..sandbox.start_problems import not_installed

        raise SandboxError(not_installed(name))
    return str(Path(path).absolute())


def _check_variable(name: str, value: str) -> tuple[str, str]:
    if not name or "=" in name or "\0" in name + value:
        raise SandboxError(f"{name!r} cannot be a variable: a name is not empty and has no '=', and nothing has a NUL.")
    return name, value


def _check_file(answer: Answer, action: str, path: str) -> None:
    code = answer.exit_code
    if code == 0:
        return
    reason = f"it took longer than {_FILE_TIMEOUT_S:g} s" if answer.timed_out else _REASONS.get(code, os.strerror(code))
    kind = EnvironmentFileNotFoundError if code == errno.ENOENT and action == "read" else EnvironmentFileError
    raise kind(f"{path}: cannot be {action} in the sandbox: {reason}.")
