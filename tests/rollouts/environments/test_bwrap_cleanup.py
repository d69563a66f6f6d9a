"""However a sandbox ends, no process of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evsys_sdk.rollouts.environment import SandboxError, running
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

from .bwrap_on_this_machine import StartSandbox
from .waiting import until

BUSY = "setsid sleep {mark} & (exec sleep {mark}) & sleep {mark}"

HOST_PROCESS = """
import asyncio, os, sys
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

async def main():
    sandbox = BwrapEnvironment()
    await sandbox.start()
    command = asyncio.create_task(sandbox.exec(sys.argv[1]))
    while (await sandbox.exec("grep -lsx sleep /proc/[0-9]*/comm")).stdout.count("comm") < 3:
        pass
    if sys.argv[2] == "with a fork" and os.fork() == 0:
        os.read(0, 1)  # outlives its parent, and with it a copy of the parent's end of the socket
        os._exit(0)
    print(sandbox._client.pid, flush=True)
    await command

asyncio.run(main())
"""


def new_mark() -> str:
    """Seconds to sleep that no other process sleeps."""
    return f"{10**6 + secrets.randbelow(10**9)}"


def processes_with(mark: str) -> list[str]:
    """The processes that sleep for this time, as the host sees them."""
    pids: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == f"sleep\0{mark}\0".encode():
                pids.append(path.parent.name)
    return pids


async def start_busy_sandbox(start_sandbox: StartSandbox, mark: str) -> BwrapEnvironment:
    sandbox = await start_sandbox()
    await sandbox.exec(BUSY.format(mark=mark).rpartition("&")[0] + "&")
    await until(lambda: len(processes_with(mark)) == 2)
    return sandbox


async def test_stopping_ends_every_process(start_sandbox: StartSandbox) -> None:
    mark = new_mark()
    sandbox = await start_busy_sandbox(start_sandbox, mark)
    await sandbox.stop()
    assert processes_with(mark) == []


async def test_a_cancelled_stop_still_stops(start_sandbox: StartSandbox) -> None:
    mark = new_mark()
    sandbox = await start_busy_sandbox(start_sandbox, mark)
    stopping = asyncio.create_task(sandbox.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await until(lambda: not processes_with(mark))


async def test_a_task_cancelled_inside_a_command_leaves_nothing(needs_bwrap: None) -> None:
    mark = new_mark()

    async def use() -> None:
        async with running(BwrapEnvironment()) as sandbox:
            await sandbox.exec(BUSY.format(mark=mark))

    task = asyncio.create_task(use())
    await until(lambda: len(processes_with(mark)) >= 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(mark) == []


async def test_a_start_that_is_cancelled_leaves_nothing(needs_bwrap: None) -> None:
    sandbox = BwrapEnvironment()
    starting = asyncio.create_task(sandbox.start())
    await until(lambda: _supervisor(sandbox) is not None)
    supervisor = _supervisor(sandbox)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not _children(supervisor))
    with pytest.raises(SandboxError, match="has ended"):
        await sandbox.exec("true")


async def test_files_that_cannot_be_written_at_the_start_leave_nothing(needs_bwrap: None) -> None:
    sandbox = BwrapEnvironment(files={"/usr/forbidden": "x"})
    with pytest.raises(OSError, match="/usr/forbidden: cannot be written in the sandbox: Read-only file system"):
        await sandbox.start()
    assert not Path(f"/proc/{_supervisor(sandbox)}").exists()


@pytest.mark.parametrize("case", ["alone", "with a fork"])
async def test_killing_the_sdk_process_ends_the_sandbox(case: str, needs_bwrap: None) -> None:
    mark = new_mark()
    arguments = [sys.executable, "-c", HOST_PROCESS, BUSY.format(mark=mark), case]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            supervisor = int(await asyncio.to_thread(process.stdout.readline))
            assert len(processes_with(mark)) == 3
            process.kill()
            await until(lambda: not processes_with(mark))
            await until(lambda: not Path(f"/proc/{supervisor}").exists())
        finally:
            process.kill()


async def test_killing_the_supervisor_ends_the_sandbox_and_fails_its_commands(start_sandbox: StartSandbox) -> None:
    mark = new_mark()
    sandbox = await start_busy_sandbox(start_sandbox, mark)
    command = asyncio.create_task(sandbox.exec("sleep 912"))
    await asyncio.sleep(0)
    supervisor = _supervisor(sandbox)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(SandboxError, match="The sandbox has ended"):
        await command
    with pytest.raises(SandboxError, match="The sandbox has ended"):
        await sandbox.exec("true")
    await until(lambda: not processes_with(mark))


async def test_killing_the_first_process_of_the_sandbox_is_an_error_and_no_result(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox()
    command = asyncio.create_task(sandbox.exec("sleep 913"))
    await asyncio.sleep(0)
    await sandbox.exec("true")  # answered after the other has begun
    first = next(pid for pid in _children(_supervisor(sandbox)) if _number_inside(pid) == 1)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(SandboxError, match="the first process of the sandbox has ended"):
        await command
    with pytest.raises(SandboxError, match="the first process of the sandbox has ended"):
        await sandbox.exec("true")


async def test_many_sandboxes_at_once_do_not_get_in_each_others_way(start_sandbox: StartSandbox) -> None:
    marks = [new_mark() for _ in range(16)]
    sandboxes = await asyncio.gather(*(start_sandbox() for _ in marks))

    async def work(sandbox: BwrapEnvironment, mark: str) -> list[str]:
        await sandbox.write_file("mark", mark)
        await sandbox.exec(f"sleep {mark} &")
        results = [await sandbox.exec("cat mark; cat /proc/[0-9]*/cmdline | tr '\\0' ' '") for _ in range(3)]
        return [result.stdout for result in results]

    for mark, outputs in zip(marks, await asyncio.gather(*map(work, sandboxes, marks)), strict=True):
        assert all(text.startswith(mark) and f"sleep {mark} " in text for text in outputs)
        assert not [other for other in marks if other != mark and other in "".join(outputs)]
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
    assert [mark for mark in marks if processes_with(mark)] == []


def _supervisor(sandbox: BwrapEnvironment) -> int | None:
    client = sandbox._client
    return client.pid if client else None


def _number_inside(pid: int) -> int:
    """The number of a process in the innermost PID namespace that it belongs to."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    numbers = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return int(numbers[-1]) if len(numbers) > 1 else 0


def _children(pid: int | None) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except FileNotFoundError:
        return []
