"""One shell command on this machine, with a time limit and a limit on what is kept of its output.

It does not use asyncio's own pipes: with those, a process in the background that holds on to stdout would keep the
command from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ..environment import ExecResult, SandboxError
from ..sandbox.supervisor.capture import Capture

_CHUNK = 1 << 18
_TIMED_OUT = 124


class HostCommand:
    """A running command; it leads a process group, which is killed when it is out of time or no longer wanted."""

    def __init__(self, process: asyncio.subprocess.Process, streams: tuple[_Stream, _Stream]) -> None:
        self._process = process
        self._streams = streams
        self.pid = process.pid

    @classmethod
    async def start(cls, command: str, cwd: Path, env: Mapping[str, str], max_output: int) -> Self:
        streams = (_Stream(max_output), _Stream(max_output))
        shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
        try:
            process = await asyncio.create_subprocess_exec(
                shell,
                "-c",
                command.encode("utf-8", "replace"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=streams[0].write_end,
                stderr=streams[1].write_end,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        except BaseException as error:
            for stream in streams:
                stream.close()
            if isinstance(error, OSError | ValueError):
                raise SandboxError(f"The command could not be started: {error}.") from error
            raise
        finally:
            for stream in streams:
                os.close(stream.write_end)
        return cls(process, streams)

    async def result(self, timeout_s: float) -> ExecResult:
        """Wait for the shell to end; what it left in the background goes on without it."""
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
        finally:
            for stream in self._streams:
                stream.end()
        code = _TIMED_OUT if timed_out else code if code >= 0 else 128 - code
        output, errors = (stream.text() for stream in self._streams)
        return ExecResult(output, errors, code, timed_out=timed_out)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class _Stream:
    """A pipe whose content is captured while the command runs and thrown away afterwards."""

    def __init__(self, limit: int) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._capture: Capture | None = Capture(limit)
        self._text = b""
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(self._read_end, self._receive)

    def end(self) -> None:
        """Take what is there now and stop listening; a process in the background may still write."""
        if self._open:
            self._receive()
        if self._capture is not None:
            self._text = self._capture.value()
            self._capture = None

    def text(self) -> str:
        return self._text.decode("utf-8", "replace")

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)

    def _receive(self) -> None:
        try:
            data = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.close()
        elif self._capture is not None:
            self._capture.add(data)
