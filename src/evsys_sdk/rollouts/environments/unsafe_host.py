"""Commands run on this machine, as you, without any isolation. For development, and for code that you trust.

environment: { kind: unsafe_host }

The working folder is a temporary one, and the variables that commands get are few, but nothing stops a command from
reading your files, using the network or filling the disk. Files given to `write_file` and `read_file` stay inside the
working folder, so tasks that expect /app or /tests need the environment `bwrap`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from pydantic import Field

from ...config.base import Strict
from ...log import get_logger
from ..environment import EnvironmentFileError, EnvironmentFileNotFoundError, ExecResult, SandboxError
from ..sandbox.supervisor.capture import Capture

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR")
_MARK = "EVSYS_ENVIRONMENT"


class UnsafeHostConfig(Strict):
    """Params of the `unsafe_host` environment."""

    files: dict[str, str] = {}
    """Files that are there from the start: path below the working folder -> content."""
    env: dict[str, str] = {}
    """Variables that every command gets besides PATH, HOME and the like."""
    timeout_s: float = Field(default=60.0, gt=0)
    """How long a command may take that does not ask for another limit."""
    max_output_bytes: int = Field(default=1_000_000, ge=1)
    """How much of stdout, and of stderr, is kept: the beginning and the end."""


class UnsafeHostEnvironment:
    """Commands run on this machine without isolation; only for code that you trust."""

    name: ClassVar[str] = "unsafe_host"
    Config = UnsafeHostConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = UnsafeHostConfig(**params)
        self._folder: Path | None = None
        self._stopped = False
        # Inherited by everything that commands start: what has left its process group is found by it at the end.
        self._mark = secrets.token_hex(16)
        self._running: set[HostCommand] = set()

    async def start(self) -> None:
        if self._folder is not None:
            raise SandboxError("This environment was started before; make a new one for each task.")
        _warn_once()
        self._folder = Path(tempfile.mkdtemp(prefix="evsys-")).resolve()
        try:
            for path, content in self.cfg.files.items():
                await self.write_file(path, content)
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
        folder = self._inside(cwd or ".")
        if not folder.is_dir():
            return ExecResult("", f"{cwd}: no such folder.", 126)
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        variables = {**passed_on, **self.cfg.env, **(env or {}), _MARK: self._mark}
        # Files, because the end of a pipe is not read before the last background process has closed it.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            running = await HostCommand.start(command, folder, variables, output, errors)
            self._running.add(running)
            try:
                code, timed_out = await running.wait(self.cfg.timeout_s if timeout_s is None else timeout_s)
            finally:
                self._running.discard(running)
            said, complained = (_read(file, self.cfg.max_output_bytes) for file in (output, errors))
        self._check_running()
        return ExecResult(said, complained, code, timed_out=timed_out)

    async def write_file(self, path: str, data: bytes | str) -> None:
        target = self._inside(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.encode() if isinstance(data, str) else data)
        except OSError as error:
            raise EnvironmentFileError(f"{path}: cannot be written: {error.strerror}.") from error

    async def read_file(self, path: str) -> bytes:
        target = self._inside(path)
        if target.exists() and not target.is_file():
            raise EnvironmentFileError(f"{path}: cannot be read: it is not a regular file.")
        try:
            return target.read_bytes()
        except FileNotFoundError as error:
            raise EnvironmentFileNotFoundError(f"{path}: cannot be read: {error.strerror}.") from error
        except OSError as error:
            raise EnvironmentFileError(f"{path}: cannot be read: {error.strerror}.") from error

    async def stop(self) -> None:
        self._stopped = True
        for running in tuple(self._running):
            running.kill()
        while processes := _find_marked(self._mark):  # again, because one of them may just have started another
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            await asyncio.sleep(0.01)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _check_running(self) -> Path:
        if self._folder is None:
            raise SandboxError("The environment is not running; call `await environment.start()` first.")
        if self._stopped:
            raise SandboxError("The environment was stopped. Whatever ran in it is lost; start a new one.")
        return self._folder

    def _inside(self, path: str) -> Path:
        root = self._check_running()
        if not path or "\0" in path:
            raise EnvironmentFileError(f"{path!r} is not a path: it is empty or holds a NUL character.")
        found = Path(root, path).resolve()  # with symbolic links followed
        if not found.is_relative_to(root):
            raise EnvironmentFileError(
                f"{path}: leads out of the working folder of environment 'unsafe_host'. "
                "Use a path below it, or environment 'bwrap', which has its own /app, /tests and /logs."
            )
        return found


def _find_marked(mark: str) -> list[int]:
    """Processes that were started in this environment, also those that have left its process groups."""
    wanted = f"{_MARK}={mark}".encode()
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):  # on systems without /proc, background processes stay
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@functools.cache
def _warn_once() -> None:
    get_logger(__name__).warning(
        "environment 'unsafe_host' runs commands on this machine, as you, without isolation; "
        "use it only for code that you trust, and 'bwrap' for what a model writes."
    )


_CHUNK = 1 << 18
_TIMED_OUT = 124


class HostCommand:
    """A running command; it leads a process group, which is killed when it is out of time or no longer wanted."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, command: str, cwd: Path, env: Mapping[str, str], output: BinaryIO, errors: BinaryIO) -> Self:
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        try:
            process = await asyncio.create_subprocess_exec(
                shell,
                "-c",
                command.encode("utf-8", "replace"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SandboxError(f"The command could not be started: {error}.") from error
        return cls(process)

    async def wait(self, timeout_s: float) -> tuple[int, bool]:
        """Wait for the shell to end; what it left in the background continues without it.

        Its exit code, and whether it was out of time.
        """
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                code = await self._process.wait()
        except TimeoutError:
            timed_out = True
            self.kill()
            code = await self._process.wait()
        except BaseException:
            self.kill()
            await self._process.wait()
            raise
        return _TIMED_OUT if timed_out else code if code >= 0 else 128 - code, timed_out

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _read(file: BinaryIO, most: int) -> str:
    """The beginning and the end of what was printed until now."""
    capture = Capture(most)
    left = file.seek(0, os.SEEK_END)  # a process in the background may still write
    file.seek(0)
    while left > 0 and (chunk := file.read(min(left, _CHUNK))):
        capture.add(chunk)
        left -= len(chunk)
    return capture.value().decode("utf-8", "replace")
