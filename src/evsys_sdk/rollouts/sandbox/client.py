"""The client of a sandbox's supervisor: starts the process and turns its answers into futures.

It works on the event loop of any thread, because it needs no child watcher. All calls on a client must come from the
loop that started it. A malformed answer ends the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..environment import SandboxError
from .control_group import MEMBERS, close_group, make_group
from .supervisor.wire import Decoder, Value, WireError, encode

# With -I, only the standard library and this folder are on the path.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from supervisor.main import main; main(*map(int, sys.argv[2:]))"
)
_STOP_TIMEOUT_S = 10.0
_ANSWER_GRACE_S = 30.0  # in addition to the time limit of the request, which the supervisor enforces
_MOST_DIAGNOSTICS = 65536
_START = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The supervisor's answer to a request."""

    id: int = -1
    """Number of the request."""
    problem: str = ""
    """Error of the sandbox itself, not of the command in it."""
    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        fields = (self.id, self.problem, self.exit_code, self.stdout, self.stderr, self.timed_out, self.notes)
        if [type(value) for value in fields] != [int, str, int, bytes, bytes, bool, list]:
            raise TypeError("a field has another type")


class SupervisorClient(asyncio.Protocol):
    """One supervisor process and its pending requests."""

    def __init__(self, *, longest_answer: int) -> None:
        loop = asyncio.get_running_loop()
        self._decoder = Decoder(longest_answer)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._last_id = _START
        self._closed: asyncio.Future[None] = loop.create_future()
        self._problem = ""
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._group: Path | None = None

    @property
    def pid(self) -> int | None:
        """The process ID of the supervisor."""
        return self._process.pid if self._process else None

    async def start(self, settings: Mapping[str, Value], *, group_memory: int | None, timeout_s: float) -> Answer:
        """Start the supervisor and wait for its first message."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._group = None if group_memory is None else make_group(group_memory)
                self._process = _start_process(theirs)
            except BaseException:
                ours.close()
                self._remove_group()
                raise
        members = str(self._group / MEMBERS) if self._group else ""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
            return await self._request(_START, {**settings, "control_group": members}, timeout_s)
        except BaseException:
            self.kill()
            raise

    async def request(self, message: Mapping[str, Value], *, timeout_s: float) -> Answer:
        """Send a request and wait for the answer; the supervisor kills the command after `timeout_s`."""
        self._last_id += 1
        identifier = self._last_id
        try:
            return await self._request(identifier, {**message, "id": identifier, "timeout_s": timeout_s}, timeout_s)
        except asyncio.CancelledError:
            # Without this, the command would run until its time limit.
            self._write({"op": "cancel", "id": identifier})
            raise

    async def close(self) -> None:
        """End the sandbox; the supervisor has ended when this returns, even on cancellation."""
        try:
            self._write({"op": "stop"})
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                # Shielded, because the timeout would otherwise cancel the
                # future, and other callers may wait for it.
                await asyncio.shield(self._closed)
        except TimeoutError:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the supervisor and thereby the sandbox."""
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
        self._remove_group()
        self._fail_pending()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                answer = Answer(**message)
                future = self._pending.pop(answer.id, None)
                if future is None:
                    self._problem = answer.problem or self._problem
                elif not future.done():
                    future.set_result(answer)
        except (WireError, TypeError) as error:
            self._problem = f"its supervisor sent something that is no answer ({error})"
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._problem = self._problem or self._diagnostics()
        self._fail_pending()
        if not self._closed.done():
            self._closed.set_result(None)

    async def _request(self, identifier: int, message: Mapping[str, Value], timeout_s: float) -> Answer:
        if self._closed.done():
            raise SandboxError(self._explain_end())
        future = self._pending[identifier] = asyncio.get_running_loop().create_future()
        self._write(message)
        try:
            async with asyncio.timeout(timeout_s + _ANSWER_GRACE_S):
                return await future
        except TimeoutError:
            self.kill()
            raise SandboxError(
                f"The sandbox did not answer for {timeout_s + _ANSWER_GRACE_S:g} s; it is stopped. "
                "Is the machine overloaded?"
            ) from None
        finally:
            self._pending.pop(identifier, None)

    def _write(self, message: Mapping[str, Value]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def _fail_pending(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(SandboxError(self._explain_end()))
        self._pending.clear()

    def _remove_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            close_group(group)

    def _explain_end(self) -> str:
        why = f": {self._problem}" if self._problem else ""
        return f"The sandbox has ended{why}. Whatever ran in it is lost; start a new one."

    def _diagnostics(self) -> str:
        """The last line of the supervisor's stderr, which it writes only when it crashes."""
        if self._process is None or self._process.stderr is None or self._process.stderr.closed:
            return ""
        with contextlib.suppress(BlockingIOError):
            lines = os.read(self._process.stderr.fileno(), _MOST_DIAGNOSTICS).decode("utf-8", "replace").splitlines()
            return lines[-1] if lines else ""
        return ""


def _start_process(control: socket.socket) -> subprocess.Popen[bytes]:
    # Without this process's environment variables, which may hold secrets. -I and -S make it start faster.
    variables = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    folder = str(Path(__file__).parent)
    arguments = ["-I", "-S", "-c", _PROGRAM, folder, str(control.fileno()), str(os.getpid())]
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[control.fileno()],
        env=variables,
        start_new_session=True,  # Ctrl-C must reach only the SDK, which then stops its sandboxes
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    return process
