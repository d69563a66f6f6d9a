"""Each limit of a bwrap sandbox ends in the result that its documentation promises, and the sandbox continues."""

from __future__ import annotations

import asyncio

import pytest

from evsys_sdk.rollouts.environment import EnvironmentFileError
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

from .bwrap_on_this_machine import StartSandbox


async def still_works(sandbox: BwrapEnvironment) -> bool:
    return (await sandbox.exec("echo works")).stdout == "works\n"


async def test_a_process_that_wants_too_much_memory_is_refused_it(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(memory_mb=64)
    result = await sandbox.exec("tail /dev/zero", timeout_s=30)
    assert (result.exit_code, result.timed_out) == (1, False)
    assert "memory exhausted" in result.stderr
    assert await still_works(sandbox)


async def test_processes_that_want_too_much_memory_together_are_killed(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(memory_mb=128)
    hog = "tail < <(head -c 60000000 /dev/zero; sleep 909)"
    result = await sandbox.exec(f"{hog} & {hog} & {hog} & {hog} & wait -n; echo $?", timeout_s=30)
    assert result.stdout == "137\n"
    assert "[sandbox] the processes of this sandbox used" in result.stderr
    assert "and may use 160 MB (each socket counts" in result.stderr
    assert "the largest, tail (PID" in result.stderr
    assert await still_works(sandbox)


async def test_memory_shared_by_processes_is_counted_once(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(memory_mb=128)
    allocate = "x=$(head -c 20000000 /dev/zero | tr '\\0' x)"
    fork = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.3; :) & done; wait"
    result = await sandbox.exec(f"{allocate}; {fork}; echo done", timeout_s=30)
    assert (result.stdout, result.stderr) == ("done\n", "")


async def test_a_hog_in_the_background_is_reported_with_the_next_command(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(memory_mb=64)
    hog = "{ head -c 45000000 /dev/zero; sleep 910; } | tail"
    await sandbox.exec(f"({hog} & {hog} & {hog} &)")
    async with asyncio.timeout(20):
        while "was killed" not in (await sandbox.exec("sleep 0.02")).stderr:
            pass
    assert await still_works(sandbox)


async def test_a_fork_bomb_stays_within_the_number_of_processes(start_sandbox: StartSandbox) -> None:
    sandbox, neighbour = await start_sandbox(processes=32), await start_sandbox(processes=32)
    await sandbox.exec("bomb() { bomb | bomb & }; bomb", timeout_s=5)
    count = await sandbox.exec("set -- /proc/[0-9]*; echo $#")  # by the shell alone, which needs no new process
    assert int(count.stdout) <= 33
    assert (await neighbour.exec("ls / | wc -l")).exit_code == 0
    await sandbox.kill_processes()
    assert await still_works(sandbox)


async def test_a_process_out_of_processor_time_is_ended(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(cpu_s=1)
    result = await sandbox.exec("while :; do :; done", timeout_s=30)
    assert (result.exit_code, result.timed_out) == (152, False)
    assert await still_works(sandbox)


async def test_endless_output_is_cut_and_the_command_ends_at_its_time_limit(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(max_output_bytes=1000)
    result = await sandbox.exec("yes | tee /dev/stderr", timeout_s=0.5)
    assert (result.exit_code, result.timed_out) == (124, True)
    for text in (result.stdout, result.stderr):
        assert len(text) < 1100
        assert "bytes of output left out" in text
    assert await still_works(sandbox)


async def test_endless_output_of_a_background_process_holds_up_nothing(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(cpu_s=2)
    result = await sandbox.exec("yes & echo started", timeout_s=60)
    assert (result.exit_code, result.timed_out) == (0, False)
    assert await still_works(sandbox)


async def test_all_files_together_have_a_largest_size(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(disk_mb=8)
    result = await sandbox.exec("head -c 6000000 /dev/zero > one; head -c 6000000 /dev/zero > /tmp/two; echo $?")
    assert result.stdout == "1\n"
    assert "No space left on device" in result.stderr
    with pytest.raises(EnvironmentFileError, match="three: cannot be written in the sandbox: No space left on device"):
        await sandbox.write_file("three", bytes(6_000_000))
    assert await still_works(sandbox)


async def test_the_number_of_files_is_limited_too(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(disk_mb=4)
    result = await sandbox.exec("i=0; while : > $i; do i=$((i+1)); done; echo $i", timeout_s=30)
    assert int(result.stdout) <= 1024
    assert "No space left on device" in result.stderr


async def test_one_file_has_a_largest_size(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(disk_mb=16, file_mb=2)
    result = await sandbox.exec("exec head -c 3000000 /dev/zero > big")
    assert result.exit_code == 153
    assert (await sandbox.exec("wc -c < big")).stdout == "2097152\n"


async def test_limits_cannot_be_raised_from_inside(sandbox: BwrapEnvironment) -> None:
    for option in ("-d", "-u", "-t", "-f"):
        result = await sandbox.exec(f"ulimit {option} unlimited")
        assert result.exit_code != 0, option
    assert (await sandbox.exec("mount -o remount,size=100g /tmp")).exit_code != 0


async def test_a_command_may_ask_for_more_time_than_usual(start_sandbox: StartSandbox) -> None:
    sandbox = await start_sandbox(timeout_s=0.2)
    assert (await sandbox.exec("sleep 911")).timed_out
    assert (await sandbox.exec("sleep 0.3; echo done", timeout_s=60)).stdout == "done\n"
