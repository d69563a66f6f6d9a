"""The supervisor's loop: requests in, results out, and an eye on time and memory."""

from __future__ import annotations

import os
import resource
import select
import time

from .commands import KILLED, Command, file_reader, file_writer, process_killer, shell_command
from .launch import LaunchError, Sandbox, launch
from .libc import PR_SET_DUMPABLE, prctl
from .limits import ProcessLimits
from .processes import MemoryWatch, kill_inside, sandbox_lives
from .seccomp import Filter
from .wire import Decoder, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from .wire import Message

_CHUNK = 1 << 18
_WATCH_EVERY_S = 0.05
_LONGEST_WAIT_S = 3600.0
_NEVER = float("inf")
_READS_OF_A_FULL_PIPE = 4
_ENDED = 0


def main(control: int, parent: int) -> None:
    """Serve the process `parent` over the socket `control` until it is done or gone."""
    parent_pidfd = os.pidfd_open(parent)
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if the machine runs out of memory, a sandbox must go before the training run
    prctl(PR_SET_DUMPABLE, 0)  # also for what is forked from here, until it becomes another program
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    decoder = Decoder()
    settings = _first_message(control, decoder)
    try:
        system_calls = Filter()
        sandbox = launch(settings)
    except (LaunchError, OSError) as error:
        _send(control, {"id": 0, "problem": str(error)})
        os._exit(1)
    try:
        _send(control, {"id": 0, "shell": sandbox.shell})
        Supervisor(control, decoder, parent_pidfd, sandbox, settings, system_calls).run()
    finally:
        sandbox.destroy()
    os._exit(0)  # closes the socket, which tells the parent that nothing is left


class Supervisor:
    """Runs commands in one sandbox until it is told to stop, or the sandbox or the parent is gone."""

    def __init__(
        self,
        control: int,
        decoder: Decoder,
        parent_pidfd: int,
        sandbox: Sandbox,
        settings: Message,
        system_calls: Filter,
    ) -> None:
        self._control, self._decoder, self._sandbox = control, decoder, sandbox
        self._system_calls = system_calls
        self._limits = ProcessLimits(**settings["limits"])
        self._watch = MemoryWatch(settings["limits"]["memory"])
        self._next_look = _NEVER
        self._notes: list[str] = []
        self._commands: dict[int, Command] = {}
        self._stopping = False
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._on(control, self._receive)
        self._on(parent_pidfd, self._stop)
        self._on(sandbox.init_pidfd, self._sandbox_died)

    def run(self) -> None:
        while not self._stopping:
            for descriptor, _ in self._poll.poll(self._patience_ms()):
                if descriptor in self._handlers:  # an earlier one of this round may have closed it
                    self._handlers[descriptor]()
            now = time.monotonic()
            for command in self._commands.values():
                if now >= command.deadline and not command.timed_out:
                    command.timed_out = True
                    command.kill()
            if now >= self._next_look:
                self._next_look = now + _WATCH_EVERY_S
                self._check_memory()

    def _on(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.POLLIN)

    def _off(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)
        os.close(descriptor)

    def _patience_ms(self) -> float:
        waits = [command.deadline - time.monotonic() for command in self._commands.values() if not command.timed_out]
        wait = min([*waits, self._next_look - time.monotonic(), _LONGEST_WAIT_S])
        return max(0.0, wait) * 1000

    def _receive(self) -> None:
        data = os.read(self._control, _CHUNK)
        if not data:
            self._stop()
        for message in self._decoder.feed(data):
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
            case _:
                self._begin(request)

    def _begin(self, request: Message) -> None:
        try:
            command = Command(request["id"], request["timeout_s"], request["limit"], self._body(request))
        except OSError as error:
            if not sandbox_lives():
                return self._sandbox_died()
            return _send(self._control, {"id": request["id"], "problem": f"cannot start a process: {error}"})
        command.notes, self._notes = self._notes, []
        self._commands[command.pid] = command
        self._on(command.pidfd, lambda: self._finish(command))
        for stream in command.streams:
            self._on(stream, lambda stream=stream: self._read(command, stream))
        self._next_look = min(self._next_look, time.monotonic() + _WATCH_EVERY_S)

    def _body(self, request: Message) -> Callable[[], NoReturn]:
        match request["op"]:
            case "exec":
                return shell_command(self._sandbox, self._limits, self._system_calls, request)
            case "read":
                return file_reader(self._sandbox, request["path"], request["limit"])
            case "write":
                return file_writer(self._sandbox, request["path"], request["data"])
            case _:
                return process_killer()

    def _read(self, command: Command, stream: int) -> None:
        if command.receive(stream):
            self._off(stream)

    def _finish(self, command: Command) -> None:
        del self._commands[command.pid]
        self._off(command.pidfd)
        for stream in command.streams:
            if stream not in self._handlers:
                continue
            if any(command.receive(stream) for _ in range(_READS_OF_A_FULL_PIPE)):
                self._off(stream)
            else:
                # A process in the background may still write there; nobody listens, but it must not be killed for it.
                self._handlers[stream] = lambda stream=stream: self._discard(stream)
        result = command.finish()
        if result.get("exit_code") == KILLED and not sandbox_lives():
            self._sandbox_died()  # which has killed the command: that is no result
        elif not command.cancelled:
            _send(self._control, result)

    def _discard(self, stream: int) -> None:
        try:
            if not os.read(stream, _CHUNK):
                self._off(stream)
        except BlockingIOError:
            pass

    def _check_memory(self) -> None:
        if not self._commands and self._watch.is_idle():
            self._next_look = _NEVER
            return
        excess = self._watch.enforce()
        if excess is None:
            return
        victim, reason = excess
        for notes in [command.notes for command in self._commands.values()] or [self._notes]:
            notes.append(reason)
        try:
            killer = os.fork()
        except OSError:  # PID 1 is gone, and everything with it
            return
        if killer == 0:
            try:
                kill_inside(victim)
            finally:
                os._exit(0)
        os.waitpid(killer, 0)


def _first_message(control: int, decoder: Decoder) -> Message:
    while data := os.read(control, _CHUNK):
        for message in decoder.feed(data):
            return message
    os._exit(0)


def _send(control: int, message: Message) -> None:
    data = memoryview(encode(message))
    try:
        while data:
            data = data[os.write(control, data) :]
    except BrokenPipeError:
        pass  # the parent is gone, which the loop sees next
