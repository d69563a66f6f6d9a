"""Hostile programs in the real sandbox: none gets what it came for, and the host is as it was before."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from evsys_sdk.rollouts.environment import EnvironmentFileError, SandboxError
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

from ..environments.conftest import bwrap_problem, needs_bwrap
from .escapes import ESCAPES, PRELUDE
from .exhaustions import EXHAUSTIONS, MEMORY_MB
from .survivals import SURVIVALS
from .thefts import THEFTS

pytestmark = pytest.mark.slow

__all__ = ["bwrap_problem", "needs_bwrap"]

SMALL = {"memory_mb": MEMORY_MB, "disk_mb": 16, "file_mb": 16, "processes": 64, "cpu_s": 20}
GROWTH_MB = 48


def children() -> set[int]:
    """The processes that this one has started and not buried."""
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()}


def groups() -> set[str]:
    """Control groups of this process's sandboxes."""
    return {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/evsys-{os.getpid()}-*")}


@pytest.fixture(autouse=True)
async def host_is_unchanged(needs_bwrap: None) -> AsyncIterator[None]:
    """Descriptors, processes and memory of this process are the same after a test as before it."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), children(), groups()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    gc.collect()
    async with asyncio.timeout(10):
        while (len(os.listdir("/proc/self/fd")), children(), groups()) != before:
            await asyncio.sleep(0.02)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < GROWTH_MB * 1024


def test_there_are_programs_enough() -> None:
    assert len(ESCAPES) + len(EXHAUSTIONS) + len(SURVIVALS) + len(THEFTS) >= 80


async def attack(program: str, timeout_s: float = 20.0, **params: object) -> str:
    """Run a Python program in a separate sandbox; what it printed, which is nothing if it was killed."""
    sandbox = BwrapEnvironment(**{**SMALL, **params})
    try:
        await sandbox.start()
        await sandbox.write_file("attack.py", PRELUDE + program)
        result = await sandbox.exec("exec python3 -I attack.py", timeout_s=timeout_s)
        assert "SyntaxError" not in result.stderr, result.stderr
        assert "NameError" not in result.stderr, result.stderr
        # Processes that the program left behind hold memory for up to two seconds more.
        until = time.monotonic() + 10
        while (shown := (await sandbox.exec("echo still here")).stdout) == "" and time.monotonic() < until:
            await asyncio.sleep(0.2)
        assert shown == "still here\n"
        return result.stdout
    finally:
        await sandbox.stop()


@pytest.mark.parametrize("name", ESCAPES)
async def test_no_program_escapes(name: str) -> None:
    assert "SUCCESS" not in await attack(ESCAPES[name])


@pytest.fixture
def treasures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What a thief could find on this machine."""
    monkeypatch.setenv("EXAMPLE_API_KEY", "hunter2-hunter2")
    (tmp_path / "secret").write_text("hunter2", encoding="utf-8")
    abstract = f"evsys-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{abstract}")
        local.listen()
        yield {
            "secret_file": str(tmp_path / "secret"),
            "port": str(server.getsockname()[1]),
            "abstract": abstract,
            "hostname": os.uname().nodename,
            "home": str(Path(__file__).parents[3]),
        }


@pytest.mark.parametrize("name", THEFTS)
async def test_no_program_steals(name: str, treasures: dict[str, str]) -> None:
    program = THEFTS[name]
    for what, value in treasures.items():
        program = program.replace(f"{{{what}}}", value)
    assert "SUCCESS" not in await attack(program)


async def test_no_program_reaches_another_sandbox() -> None:
    mine, other = BwrapEnvironment(**SMALL), BwrapEnvironment(**SMALL)
    try:
        await asyncio.gather(mine.start(), other.start())
        await other.write_file("/tmp/secret", "hunter2")
        await other.exec("setsid -f sleep 3600; cp /tmp/secret /dev/shm/secret")
        await other.exec(
            "setsid -f python3 -c 'import socket, time; s = socket.socket(socket.AF_UNIX); "
            's.bind("\\0other"); s.listen(); time.sleep(60)\''
        )
        look = "ls /tmp /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; cat /proc/net/unix; kill -9 -1"
        stdout = (await mine.exec(look)).stdout
        assert "secret" not in stdout
        assert "3600" not in stdout
        assert "other" not in stdout
        assert "3600" in (await other.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
    finally:
        await asyncio.gather(mine.stop(), other.stop())


@pytest.mark.parametrize("name", SURVIVALS)
async def test_no_program_survives_to_write_the_reward(name: str) -> None:
    sandbox = BwrapEnvironment(**SMALL)
    try:
        await sandbox.start()
        await sandbox.exec(f"({SURVIVALS[name]}) >/dev/null 2>&1; sleep 0.1", timeout_s=5)
        await sandbox.kill_processes()
        assert (await sandbox.exec("set -- /proc/[0-9]*; echo $#")).stdout == "2\n"
        await sandbox.exec("rm -rf reward.txt")
        await sandbox.write_file("reward.txt", "0.0")
        await asyncio.sleep(0.1)
        assert await sandbox.read_file("reward.txt") == b"0.0"
    finally:
        await sandbox.stop()


@pytest.mark.parametrize("control_group", [True, False], ids=["with a control group", "without"])
@pytest.mark.parametrize("name", EXHAUSTIONS)
async def test_no_program_gets_more_than_its_share(name: str, control_group: bool) -> None:
    assert "SUCCESS" not in await attack(EXHAUSTIONS[name], control_group=control_group)


LEAD_OUT = "for n in $(seq 3 40); do ln -s /proc/self/fd/$n/{} l$n; done; ln -s l4 reward.txt"
REWARDS = {
    "a link to itself": "ln -s reward.txt reward.txt",
    "a link to a device": "ln -s /dev/zero reward.txt",
    "a link to a terminal": "ln -s /dev/tty reward.txt",
    "a link to the reader's memory": "ln -s /proc/self/mem reward.txt",
    "a link to the reader's variables": "ln -s /proc/self/environ reward.txt",
    "a link to the reader's map": "ln -s /proc/self/maps reward.txt",
    "a link to the reader's descriptors": "ln -s /proc/self/fd/1 reward.txt",
    "a link to the first process": "ln -s /proc/1/status reward.txt",
    "a link to the host": "ln -s /etc/shadow reward.txt",
    "a link to the host's processes": LEAD_OUT.format("1/cmdline"),
    "a link to the host's kernel": LEAD_OUT.format("version"),
    "a link to the host's mounts": LEAD_OUT.format("self/mountinfo"),
    "a link through the reader's root": "ln -s /proc/self/root/etc/passwd reward.txt",
    "a link through the reader's folder": "echo 1 > real.txt; ln -s /proc/self/cwd/real.txt reward.txt",
    "a folder": "mkdir reward.txt",
    "a pipe": "mkfifo reward.txt",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"reward.txt\")'",
    "a huge file": "truncate -s 70M reward.txt",
    "too many links": "for i in $(seq 50); do ln -s l$((i+1)) l$i; done; ln -s l1 reward.txt",
    "nothing": "rm -f reward.txt",
}


@pytest.mark.parametrize("name", REWARDS)
async def test_a_reward_that_is_no_file_is_an_error_and_nothing_else(name: str) -> None:
    sandbox = BwrapEnvironment(**{**SMALL, "file_mb": 128, "max_read_mb": 8})
    try:
        await sandbox.start()
        await sandbox.exec(REWARDS[name])
        with pytest.raises(EnvironmentFileError, match=r"^reward\.txt: cannot be read in the sandbox: .*\.$"):
            await sandbox.read_file("reward.txt")
        assert (await sandbox.exec("echo still here")).stdout == "still here\n"
    finally:
        await sandbox.stop()


async def test_no_descriptor_of_the_reader_or_writer_leads_out() -> None:
    sandbox = BwrapEnvironment(**SMALL)
    try:
        await sandbox.start()
        await sandbox.exec("for n in $(seq 0 40); do ln -s /proc/self/fd/$n f$n; done")
        for number in range(3, 41):
            for below in ("version", "1/status", "tmp/x"):
                with pytest.raises(EnvironmentFileError):
                    await sandbox.read_file(f"f{number}/{below}")
                with pytest.raises(EnvironmentFileError):
                    await sandbox.write_file(f"f{number}/{below}", "x")
    finally:
        await sandbox.stop()


FLOODS = {
    "output without end": "yes",
    "output without lines": "cat /dev/zero",
    "errors without end": "yes >&2",
    "output of many": "for i in $(seq 20); do yes & done; wait",
    "output of the background": "for i in $(seq 20); do setsid -f yes; done; sleep 1",
    "output that looks like an answer": "while :; do printf '\\377\\377\\377\\377\\377\\377\\377\\377'; done",
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_costs_the_host_no_memory(name: str) -> None:
    sandbox = BwrapEnvironment(**SMALL, max_output_bytes=10_000)
    try:
        await sandbox.start()
        result = await sandbox.exec(FLOODS[name], timeout_s=1.5)
        assert len(result.stdout) + len(result.stderr) < 25_000
        await sandbox.kill_processes()
        assert (await sandbox.exec("echo still here")).stdout == "still here\n"
    finally:
        await sandbox.stop()


async def test_sandboxes_at_once_under_attack_leave_nothing() -> None:
    async def one(name: str) -> str:
        try:
            return await attack(EXHAUSTIONS[name])
        except SandboxError as error:
            return json.dumps(str(error))

    names = ["processes", "buffers of local sockets", "memory of many processes", "pipes", "descriptors", "threads"]
    assert not [text for text in await asyncio.gather(*map(one, names)) if "SUCCESS" in text]


async def test_a_long_command_brings_no_memory_that_no_one_counts() -> None:
    sandbox = BwrapEnvironment(**SMALL)
    try:
        await sandbox.start()
        result = await sandbox.exec(f"for fd in /proc/$$/fd/*; do echo x >> $fd; done 2>&1 # {'x' * 200_000}")
        assert "memfd" not in result.stdout
        keep = "python3 -c 'import os; [os.ftruncate(fd, 1 << 24) or print(1) for fd in range(3, 99)]'"
        assert "1" not in (await sandbox.exec(f"{keep} 2>/dev/null # {'x' * 200_000}")).stdout
    finally:
        await sandbox.stop()
