"""Generations: the successive PID namespaces in which the commands of a sandbox run.

When the first process of a PID namespace dies, the kernel kills all other processes of the namespace and allows no new
ones. Signals from inside are not as reliable, because processes can fork faster than they are killed. So to kill all
processes, a generation is ended, and the next one starts without processes but with the same files.
"""

from __future__ import annotations

import os
import select

from .libc import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWPID,
    CLONE_PARENT,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    clone,
    close_descriptors,
    close_streams,
    drop_capabilities,
    mount,
    prctl,
    unmount,
    wait_for_ever,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .seccomp import Filter
    from .settings import ProcessLimits

_SIGKILL = 9
_NAMESPACES = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWCGROUP
_MADE, _READY = b"made ", b"ready"
_PATIENCE_MS = 20_000
_MOST_SAID = 4096


class Generation:
    """A PID namespace and its first process, which is a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def join(self) -> None:
        """Make future forks of this process run in it."""
        os.setns(self.pidfd, _NAMESPACES)

    def kill(self) -> None:
        """Kill all processes in it; `reap` waits for the end."""
        os.kill(self.pid, _SIGKILL)

    def reap(self) -> None:
        """Wait until all processes have ended and reap them; commands must be reaped before."""
        while os.waitpid(-1, 0)[0] != self.pid:
            pass
        os.close(self.pidfd)


class Maker:
    """A process that creates generations, because a process that has joined a PID namespace cannot create siblings."""

    def __init__(self, limits: ProcessLimits, system_calls: Filter) -> None:
        requests, self._requests = os.pipe()
        joined, self._joined = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for descriptor in (self._requests, self._joined, self._answers):
                os.close(descriptor)
            _serve(requests, joined, answers, limits, system_calls)
        for descriptor in (requests, joined, answers):
            os.close(descriptor)

    def make(self) -> Generation:
        """Create a generation, join it, and wait until its first process has dropped its privileges."""
        os.write(self._requests, b"+")
        created = self._receive(None)
        if not created.startswith(_MADE):
            raise OSError(f"no PID namespace can be made: {created.decode('utf-8', 'replace')}")
        generation = Generation(int(created.removeprefix(_MADE)))
        message = self._receive(generation.pidfd)
        # The namespace can be joined only while the first process is
        # dumpable; it becomes undumpable after it has been joined.
        if message == _READY:
            generation.join()
            os.write(self._joined, b"+")
            message = self._receive(generation.pidfd)
        if message != _READY:
            generation.kill()
            generation.reap()
            raise OSError(f"the first process could not be set up: {message.decode('utf-8', 'replace')}")
        return generation

    def _receive(self, pidfd: int | None) -> bytes:
        poll = select.poll()
        for descriptor in (self._answers, pidfd):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(_PATIENCE_MS)]
        if self._answers not in ready:
            return b"it died" if ready else b"it did not answer"
        line = bytearray()
        while not line.endswith(b"\n") and (byte := os.read(self._answers, 1)):
            line += byte
        return bytes(line.rstrip(b"\n"))

    def end(self) -> None:
        """End the maker; its last generation continues."""
        os.close(self._requests)
        os.close(self._joined)


def _serve(requests: int, joined: int, answers: int, limits: ProcessLimits, system_calls: Filter) -> NoReturn:
    """Run the maker's loop; it ends when the supervisor closes the pipe or dies."""
    count = 0
    try:
        while os.read(requests, 1):
            # The first process waits for this pipe, so that the PID is written before its own answers.
            reader, writer = os.pipe()
            pid = clone(_NAMESPACES | CLONE_PARENT)
            if pid == 0:
                os.close(writer)
                os.read(reader, 1)
                _be_first_process(joined, answers, limits, system_calls, is_first=count == 0)
            os.write(answers, b"%s%d\n" % (_MADE, pid))
            os.close(writer)
            os.close(reader)
            count += 1
    except OSError as error:
        os.write(answers, f"{error}\n".encode("utf-8", "replace")[:_MOST_SAID])
    finally:
        os._exit(0)


def _be_first_process(
    joined: int, answers: int, limits: ProcessLimits, system_calls: Filter, *, is_first: bool
) -> NoReturn:
    """Mount /proc for the new namespace, drop all privileges, and wait until the kernel kills the process."""
    try:
        if not is_first:
            unmount("/proc")
        mount("proc", "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        os.setsid()
        limits.apply()
        drop_capabilities()
        prctl(PR_SET_PDEATHSIG, _SIGKILL)
        prctl(PR_SET_DUMPABLE, 1)  # joining requires ptrace access; no other process is in the namespace yet
        os.write(answers, _READY + b"\n")  # fails if the supervisor has died
        if os.read(joined, 1):
            prctl(PR_SET_DUMPABLE, 0)
            system_calls.install()
            os.write(answers, _READY + b"\n")
            close_streams()
            close_descriptors()
            wait_for_ever()
    except OSError as error:
        os.write(answers, f"{error}\n".encode("utf-8", "replace")[:_MOST_SAID])
    finally:
        os._exit(1)
