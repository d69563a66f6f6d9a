"""The supervisor's loop: serves requests, and enforces time and memory limits."""

from __future__ import annotations

import os
import resource
import select
import time

from .commands import KILLED, Command, file_reader, file_writer, shell_command
from .launch import LaunchError, Sandbox, launch
from .libc import PR_SET_DUMPABLE, hide_arguments, prctl
from .processes import MemoryWatch, raise_oom_score, socket_buffer
from .seccomp import Filter
from .settings import Settings
from .wire import Decoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from .wire import Message

_CHUNK = 1 << 18
_LONGEST_REQUEST = 1 << 32
_WATCH_EVERY_S = 0.01
_LONGEST_WAIT_S = 3600.0
_NEVER = float("inf")
_READS_OF_A_FULL_PIPE = 4  # a pipe of an ordinary user holds at most 1 MB, four times _CHUNK
_ENDED = 0
_PF_EXITING = 4


def main(control: int, parent: int) -> None:
    """Serve the process `parent` over the socket `control` until it stops the sandbox or ends."""
    os.set_inheritable(control, False)
    parent_pidfd = os.pidfd_open(parent)
    hide_arguments()
    raise_oom_score()  # if the machine runs out of memory, a sandbox must be killed before the training run
    prctl(PR_SET_DUMPABLE, 0)  # inherited by forks until they execute another program
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    decoder = Decoder(_LONGEST_REQUEST)
    settings = Settings(_first_message(control, decoder))
    watch = MemoryWatch(settings.memory, socket_buffer())
    try:
        sandbox = launch(settings, Filter())
    except (LaunchError, OSError) as error:
        _send(control, {"id": 0, "problem": str(error)})
        os._exit(1)
    try:
        _send(control, {"id": 0})
        Supervisor(control, decoder, parent_pidfd, sandbox, watch).run()
    finally:
        sandbox.destroy()
    os._exit(0)  # closes the socket, which tells the parent that the sandbox has ended


class Supervisor:
    """Runs commands in one sandbox until it is stopped, or the sandbox or the parent ends."""

    def __init__(self, control: int, decoder: Decoder, parent_pidfd: int, sandbox: Sandbox, watch: MemoryWatch) -> None:
        self._control, self._decoder, self._sandbox, self._watch = control, decoder, sandbox, watch
        self._next_look = _NEVER
        self._notes: list[str] = []
        self._commands: dict[int, Command] = {}
        self._stopping = False
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._on(control, self._receive)
        self._on(parent_pidfd, self._stop)
        self._on(sandbox.generation.pidfd, self._sandbox_died)

    def run(self) -> None:
        while not self._stopping:
            for descriptor, _ in self._poll.poll(self._patience_ms()):
                if descriptor in self._handlers:  # an earlier handler of this round may have removed it
                    self._handlers[descriptor]()
            self._kill_overdue()
            if time.monotonic() >= self._next_look:
                self._next_look = self._check_memory()

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for command in self._commands.values():
            if now >= command.deadline and not command.timed_out:
                command.timed_out = True
                command.kill()

    def _on(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _off(self, descriptor: int) -> None:
        self._forget(descriptor)
        os.close(descriptor)

    def _forget(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)

    def _patience_ms(self) -> float:
        waits = [command.deadline - time.monotonic() for command in self._commands.values() if not command.timed_out]
        wait = min([*waits, self._next_look - time.monotonic(), _LONGEST_WAIT_S])
        return max(0.0, wait) * 1000

    def _receive(self) -> None:
        received = os.read(self._control, _CHUNK)
        if not received:
            self._stop()
        for message in self._decoder.feed(received):
            self._serve(message)

    def _stop(self) -> None:
        self._stopping = True

    def _sandbox_died(self) -> None:
        self._stopping = True
        _send(self._control, {"id": _ENDED, "problem": "the first process of the sandbox has ended"})

    def _serve(self, request: Message) -> None:
        match request["op"]:
            case "stop":
                self._stop()
            case "cancel":
                for command in self._commands.values():
                    if command.identifier == request["id"]:
                        command.cancelled = True
                        command.kill()
            case "kill":
                self._kill_everything(request["id"])
            case _:
                self._begin(request)

    def _begin(self, request: Message) -> None:
        try:
            command = Command(request, self._body(request))
        except OSError as error:
            if not self._lives():
                return self._sandbox_died()
            return _send(self._control, {"id": request["id"], "problem": f"cannot start a process: {error}"})
        command.notes, self._notes = self._notes, []
        self._commands[command.pid] = command
        self._on(command.pidfd, lambda: self._finish(command))
        for stream in command.streams:
            self._on(stream, lambda stream=stream: self._off(stream) if command.receive(stream) else None)
        self._next_look = min(self._next_look, time.monotonic() + _WATCH_EVERY_S)

    def _body(self, request: Message) -> Callable[[], NoReturn]:
        match request["op"]:
            case "exec":
                return shell_command(self._sandbox, request)
            case "read":
                return file_reader(self._sandbox, request)
            case _:
                return file_writer(self._sandbox, request)

    def _finish(self, command: Command) -> None:
        result = self._reap(command)
        if result.get("exit_code") == KILLED and not self._lives():
            self._sandbox_died()  # the end of the sandbox has killed the command, so there is no result
        elif not command.cancelled:
            _send(self._control, result)

    def _reap(self, command: Command) -> Message:
        """Reap a command and read its remaining output."""
        del self._commands[command.pid]
        self._off(command.pidfd)
        for stream in command.streams:
            if stream not in self._handlers:
                continue
            if any(command.receive(stream) for _ in range(_READS_OF_A_FULL_PIPE)):
                self._off(stream)
            else:
                # Discard further output of background processes; closing the pipe would kill them with SIGPIPE.
                self._handlers[stream] = lambda stream=stream: self._discard(stream)
        return command.finish()

    def _discard(self, stream: int) -> None:
        try:
            if not os.read(stream, _CHUNK):
                self._off(stream)
        except BlockingIOError:
            pass

    def _kill_everything(self, identifier: int) -> None:
        """End the current generation and start the next one."""
        generation = self._sandbox.generation
        self._forget(generation.pidfd)
        generation.kill()
        for command in list(self._commands.values()):
            select.select([command.pidfd], [], [])
            result = self._reap(command)
            if not command.cancelled:
                _send(self._control, result)
        # After the commands are reaped, because the first process ends only then.
        generation.reap()
        try:
            self._sandbox.begin_generation()
        except OSError as error:
            self._stopping = True
            return _send(self._control, {"id": _ENDED, "problem": f"after everything was killed, {error}"})
        self._on(self._sandbox.generation.pidfd, self._sandbox_died)
        _send(self._control, {"id": identifier, "exit_code": 0})

    def _lives(self) -> bool:
        """Whether the first process is running and not exiting."""
        try:
            with open("/proc/1/stat", "rb") as file:
                flags = int(file.read().rpartition(b") ")[2].split()[6])
        except (OSError, IndexError):
            return False
        return not flags & _PF_EXITING

    def _check_memory(self) -> float:
        """Enforce the memory limit; return the time of the next check."""
        if not self._commands and self._watch.is_idle():
            return _NEVER
        if reason := self._watch.enforce(self._kill_overdue):
            for notes in [command.notes for command in self._commands.values()] or [self._notes]:
                notes.append(reason)
        return time.monotonic() + max(_WATCH_EVERY_S, self._watch.pause_s)


def _first_message(control: int, decoder: Decoder) -> Message:
    while received := os.read(control, _CHUNK):
        for message in decoder.feed(received):
            return message
    os._exit(0)


def _send(control: int, message: Message) -> None:
    remaining = memoryview(encode(message))
    try:
        while remaining:
            remaining = remaining[os.write(control, remaining) :]
    except BrokenPipeError:
        pass  # the parent has ended; the loop notices it
