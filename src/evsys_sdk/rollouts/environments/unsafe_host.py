"""Commands run on this machine, as you, without isolation. For development and trusted code.

environment: { kind: unsafe_host }

The working folder is temporary and few variables are passed on, but a command can read your files, use the network or
fill the disk. `write_file` and `read_file` stay inside the working folder, so tasks that expect /app or /tests need the
environment `bwrap`.
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
    """Files present from the start: path below the working folder -> content."""
    env: dict[str, str] = {}
    """Variables of every command besides PATH, HOME and a few others."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Default time limit of a command."""
    max_output_bytes: int = Field(default=1_000_000, ge=1)
    """Bytes kept of stdout and of stderr: the beginning and the end."""


class UnsafeHostEnvironment:
    """Commands run on this machine without isolation; only for trusted code."""

    name: ClassVar[str] = "unsafe_host"
    Config = UnsafeHostConfig

    def __init__(self, **params: Any) -> None:
        self.cfg = UnsafeHostConfig(**params)
        self._folder: Path | None = None
        self._stopped = False
        # A variable that all child processes inherit; `stop` finds those that left their process group by it.
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
        # Files, because a pipe only ends when the last background process closes it.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = await HostCommand.start(command, folder, variables, output, errors)
            self._running.add(process)
            try:
                code, timed_out = await process.wait(self.cfg.timeout_s if timeout_s is None else timeout_s)
            finally:
                self._running.discard(process)
            stdout, stderr = (_read(file, self.cfg.max_output_bytes) for file in (output, errors))
        self._check_running()
        return ExecResult(stdout, stderr, code, timed_out=timed_out)

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
        while processes := _find_marked(self._mark):  # repeat: a process may have started another one
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
            raise SandboxError("the environment has been stopped. Create a new one.")
        return self._folder

    def _inside(self, path: str) -> Path:
        root = self._check_running()
        if not path or "\0" in path:
            raise EnvironmentFileError(f"{path!r} is not a path: it is empty or holds a NUL character.")
        target = Path(root, path).resolve()  # with symbolic links followed
        if not target.is_relative_to(root):
            raise EnvironmentFileError(
                f"{path}: leads out of the working folder of environment 'unsafe_host'. "
                "Use a path below it, or environment 'bwrap', which has its own /app, /tests and /logs."
            )
        return target


def _find_marked(mark: str) -> list[int]:
    """Processes started in this environment, including those that left their process group."""
    entry = f"{_MARK}={mark}".encode()
    process_ids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):  # without /proc, background processes are not found
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes():
                process_ids.append(int(folder.name))
    return process_ids


@functools.cache
def _warn_once() -> None:
    get_logger(__name__).warning(
        "environment 'unsafe_host' runs commands on this machine, as you, without isolation; "
        "use it only for trusted code, and 'bwrap' for code that a model writes."
    )


_CHUNK = 1 << 18
_TIMED_OUT = 124


class HostCommand:
    """A running command; its process group is killed at the time limit or on cancellation."""

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
        """Wait for the shell to end; its background processes continue.

        Returns the exit code, and whether it timed out.
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
    """The beginning and the end of the output so far."""
    capture = Capture(most)
    remaining = file.seek(0, os.SEEK_END)  # a process in the background may still write
    file.seek(0)
    while remaining > 0 and (chunk := file.read(min(remaining, _CHUNK))):
        capture.add(chunk)
        remaining -= len(chunk)
    return capture.value().decode("utf-8", "replace")
