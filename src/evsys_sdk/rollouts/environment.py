"""The contract of an environment: where an agent's commands run and a task's files are stored.

One object is one task's environment: it is started once, runs any number of commands, and is stopped. Each `exec` is a
new shell in `cwd` with the environment's variables; files and background processes persist between calls. A command's
failure is in its `ExecResult`, for the model to read. A failure of the environment raises an exception, so that it is
never scored as an answer.

    async with running(BwrapEnvironment(memory_mb=512)) as environment:
        await environment.write_file("numbers.txt", "1 2 3")
        result = await environment.exec("wc -w < numbers.txt")

Agents decide which commands run, verifiers score the result.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, NoReturn, Protocol, runtime_checkable

from ..errors import EvsysError


class SandboxError(EvsysError, RuntimeError):
    """An environment did not start, failed or was misused; never the failure of a command inside it."""


class EnvironmentFileError(EvsysError, OSError):
    """A file of an environment cannot be read or written."""


class EnvironmentFileNotFoundError(EnvironmentFileError, FileNotFoundError):
    """A file does not exist in the environment."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command printed and how it ended."""

    stdout: str
    stderr: str
    exit_code: int
    """In the shell's convention: 128 + n for a command ended by signal n, 124 for a timeout."""
    timed_out: bool = False


@runtime_checkable
class Environment(Protocol):
    """Where the commands of one task run."""

    name: ClassVar[str]

    async def start(self) -> None:
        """Prepare for `exec`; raises `SandboxError` on failure."""
        ...

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a shell command; at the time limit, its process group is killed."""
        ...

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file and create its parent folders; relative paths start at the working folder."""
        ...

    async def read_file(self, path: str) -> bytes:
        """The content of a regular file."""
        ...

    async def stop(self) -> None:
        """Kill all processes and remove all files; may be called at any time and repeatedly."""
        ...


@contextlib.asynccontextmanager
async def running[E: Environment](environment: E) -> AsyncGenerator[E]:
    """Start an environment for a block; it is always stopped, even if the start fails."""
    try:
        await environment.start()
        yield environment
    finally:
        await environment.stop()


async def upload_dir(environment: Environment, source: Path, target: str) -> None:
    """Copy a local folder into an environment, with empty folders, symbolic links and execute permission."""
    if not source.is_dir():
        raise EnvironmentFileNotFoundError(f"{source}: is not a folder, so it cannot be copied into the environment.")
    finish = [f"mkdir -p {shlex.quote(target)}"]
    for path in sorted(source.rglob("*")):
        inside = str(PurePosixPath(target, path.relative_to(source).as_posix()))
        quoted = shlex.quote(inside)
        if path.is_symlink():
            finish.append(f"mkdir -p $(dirname {quoted}) && ln -sfn {shlex.quote(str(path.readlink()))} {quoted}")
        elif path.is_dir():
            finish.append(f"mkdir -p {quoted}")
        else:
            await environment.write_file(inside, path.read_bytes())
            if path.stat().st_mode & 0o100:
                finish.append(f"chmod +x {quoted}")
    result = await environment.exec("set -e\n" + "\n".join(finish))
    if result.exit_code:
        raise EnvironmentFileError(f"{source}: could not be copied to {target}: {result.stderr.strip()}")


class NoEnvironment:
    """No shell and no files, for tasks that are only a conversation.

    environment: { kind: none }
    """

    name: ClassVar[str] = "none"

    async def start(self) -> None:
        pass

    async def exec(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        self._refuse("run a command")

    async def write_file(self, path: str, data: bytes | str) -> None:
        self._refuse(f"write {path!r}")

    async def read_file(self, path: str) -> bytes:
        self._refuse(f"read {path!r}")

    async def stop(self) -> None:
        pass

    def _refuse(self, what: str) -> NoReturn:
        raise SandboxError(f"cannot {what}: this task has no environment. Set environment: bwrap.")
