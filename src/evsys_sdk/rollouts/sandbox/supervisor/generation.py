"""Generations: the PID namespaces in which the commands of a sandbox run, one after the other.

When the first process of a PID namespace dies, the kernel kills all the others and starts none any more. No signal that
is sent from inside is as thorough, because a process that kills faster than it is killed would survive. So the end of
everything that runs is the end of a generation, and the next one begins empty, with the same files.
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
        """Have what this process forks from now on run in it."""
        os.setns(self.pidfd, _NAMESPACES)

    def kill(self) -> None:
        """Kill everything in it; over when `bury` returns."""
        os.kill(self.pid, _SIGKILL)

    def bury(self) -> None:
        """Wait until nothing of it is left; commands must be buried before, other children of this process are now."""
        while os.waitpid(-1, 0)[0] != self.pid:
            pass
        os.close(self.pidfd)


class Maker:
    """A process that makes generations: one that has joined a PID namespace can make no other next to it."""

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
        """A new generation, joined, with a first process that is as harmless as it will stay."""
        os.write(self._requests, b"+")
        made = self._hear(None)
        if not made.startswith(_MADE):
            raise OSError(f"no PID namespace can be made: {made.decode('utf-8', 'replace')}")
        generation = Generation(int(made.removeprefix(_MADE)))
        said = self._hear(generation.pidfd)
        # The first process can be joined only while it may be
        # looked into; it shuts that door when it hears that it was.
        if said == _READY:
            generation.join()
            os.write(self._joined, b"+")
            said = self._hear(generation.pidfd)
        if said != _READY:
            generation.kill()
            generation.bury()
            raise OSError(f"the first process could not be set up: {said.decode('utf-8', 'replace')}")
        return generation

    def _hear(self, pidfd: int | None) -> bytes:
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
        """Let the maker end; the generation that it made last continues."""
        os.close(self._requests)
        os.close(self._joined)


def _serve(requests: int, joined: int, answers: int, limits: ProcessLimits, system_calls: Filter) -> NoReturn:
    """The maker's loop; it ends when the supervisor releases the other end or dies."""
    made = 0
    try:
        while os.read(requests, 1):
            # What is waited for is written before the first process can say anything: it waits for this pipe.
            stated, tell = os.pipe()
            pid = clone(_NAMESPACES | CLONE_PARENT)
            if pid == 0:
                os.close(tell)
                os.read(stated, 1)
                _be_first_process(joined, answers, limits, system_calls, is_first=made == 0)
            os.write(answers, b"%s%d\n" % (_MADE, pid))
            os.close(tell)
            os.close(stated)
            made += 1
    except OSError as error:
        os.write(answers, f"{error}\n".encode("utf-8", "replace")[:_MOST_SAID])
    finally:
        os._exit(0)


def _be_first_process(
    joined: int, answers: int, limits: ProcessLimits, system_calls: Filter, *, is_first: bool
) -> NoReturn:
    """Show the new processes in /proc, give everything up, and wait until the kernel ends it all."""
    try:
        if not is_first:
            unmount("/proc")
        mount("proc", "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
        os.setsid()
        limits.apply()
        drop_capabilities()
        prctl(PR_SET_PDEATHSIG, _SIGKILL)
        prctl(PR_SET_DUMPABLE, 1)  # only who may look into a process may join its namespace; no one else is here
        os.write(answers, _READY + b"\n")  # fails, and ends this, if the supervisor has died meanwhile
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
