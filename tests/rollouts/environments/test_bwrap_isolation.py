"""What a command in a bwrap sandbox can see and change of the host: nothing but the programs in /usr."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from pathlib import Path

import pytest

from evsys_sdk.rollouts.environment import EnvironmentFileError, SandboxError
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

from .bwrap_on_this_machine import StartSandbox
from .waiting import until


async def test_there_is_no_network_but_the_loopback_device(sandbox: BwrapEnvironment) -> None:
    devices = await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")
    assert devices.stdout == "lo\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{port}")
    assert "Connection refused" in result.stderr


@pytest.mark.parametrize("folder", ["/", "/usr", "/usr/bin", "/etc", "/dev", "/bin", "/proc"])
async def test_the_system_is_read_only(sandbox: BwrapEnvironment, folder: str) -> None:
    result = await sandbox.exec(f"touch {folder}/planted")
    assert result.exit_code != 0
    with pytest.raises(EnvironmentFileError, match="planted: cannot be written in the sandbox"):
        await sandbox.write_file(f"{folder}/planted", "")


@pytest.mark.parametrize("folder", ["/app", "/tmp", "/tests", "/logs", "/solution", "/dev/shm"])
async def test_some_folders_are_writable_and_private(start_sandbox: StartSandbox, folder: str) -> None:
    first, other = await start_sandbox(), await start_sandbox()
    await first.write_file(f"{folder}/evsys-private", "secret")
    assert (await first.exec(f"cat {folder}/evsys-private")).stdout == "secret"
    assert (await other.exec(f"ls -A {folder}")).stdout == ""
    assert not Path(folder, "evsys-private").exists()


async def test_variables_of_the_host_are_absent_everywhere(
    start_sandbox: StartSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY", "hunter2-hunter2")
    sandbox = await start_sandbox(env={"GIVEN": "1"})
    result = await sandbox.exec("env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "GIVEN=1" in result.stdout
    assert "hunter2" not in result.stdout
    names = {line.split("=")[0] for line in (await sandbox.exec("env")).stdout.splitlines()}
    assert names == {"GIVEN", "HOME", "LANG", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"}


async def test_files_of_the_host_are_absent(sandbox: BwrapEnvironment, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("private", encoding="utf-8")
    for path in (tmp_path / "private.txt", Path.home(), Path("/etc/shadow"), Path("/var"), Path("/run"), Path("/sys")):
        assert (await sandbox.exec(f"ls -d {path}")).exit_code != 0, path
    assert (await sandbox.exec("cut -d: -f1 /etc/passwd")).stdout.split() == ["agent", "nobody"]


async def test_processes_and_the_name_of_the_host_cannot_be_seen(sandbox: BwrapEnvironment) -> None:
    result = await sandbox.exec("cat /proc/[0-9]*/comm; cat /proc/sys/kernel/hostname")
    *processes, hostname = result.stdout.split()
    assert hostname == "sandbox"
    assert "bash" in processes
    assert set(processes) <= {"bash", "python", "python3", Path(sys.executable).resolve().name, "cat"}
    assert (await sandbox.exec("cat /proc/1/cmdline | tr -d '\\0'")).stdout == ""


async def test_commands_have_no_privileges_and_cannot_get_any(sandbox: BwrapEnvironment) -> None:
    status = (await sandbox.exec("cat /proc/self/status")).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert fields["Uid"].split() == ["1000"] * 4
    assert (await sandbox.exec("whoami")).stdout == "agent\n"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux's `unshare` is not installed")
async def test_commands_cannot_make_namespaces_in_which_they_would_be_root(sandbox: BwrapEnvironment) -> None:
    result = await sandbox.exec("unshare --user --map-root-user id; unshare --mount true")
    assert result.stdout == ""
    assert result.stderr.count("Operation not permitted") == 2


@pytest.mark.skipif(shutil.which("python3", path="/usr/bin:/usr/local/bin") is None, reason="no python3 in /usr")
async def test_memory_that_belongs_to_no_process_cannot_be_had(sandbox: BwrapEnvironment) -> None:
    result = await sandbox.exec("python3 -c 'import os; os.memfd_create(\"hidden\")'")
    assert "Function not implemented" in result.stderr


async def test_no_signal_from_inside_ends_the_sandbox(sandbox: BwrapEnvironment) -> None:
    for signal in ("INT", "TERM", "HUP", "CHLD", "STOP", "KILL"):
        await sandbox.exec(f"kill -{signal} 1; kill -{signal} -1")
    assert (await sandbox.exec("echo still here")).stdout == "still here\n"


async def test_orphans_are_buried(sandbox: BwrapEnvironment) -> None:
    await sandbox.exec("for i in $(seq 50); do (sleep 0.01 &) ; done")

    async def only_the_sandbox_itself_is_left() -> bool:
        return (await sandbox.exec("set -- /proc/[0-9]*; echo $#")).stdout == "2\n"

    await until(only_the_sandbox_itself_is_left)


async def test_no_path_leads_out_of_the_sandbox(sandbox: BwrapEnvironment, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("untouched", encoding="utf-8")
    await sandbox.exec(f"ln -s / root; ln -s {tmp_path}/target link")
    for path in ("link", f"root{tmp_path}/target", f"../../../..{tmp_path}/target", f"{tmp_path}/target"):
        with pytest.raises(EnvironmentFileError):
            await sandbox.read_file(path)
    for path in ("../../../../tmp/inside", "root/tmp/inside"):
        await sandbox.write_file(path, "inside")
    assert (await sandbox.exec("cat /tmp/inside")).stdout == "inside"
    assert not Path("/tmp/inside").exists()
    assert (tmp_path / "target").read_text("utf-8") == "untouched"


async def test_a_folder_of_the_host_can_be_shown_read_only(start_sandbox: StartSandbox, public_dir: Path) -> None:
    (public_dir / "data.txt").write_text("shown", encoding="utf-8")
    sandbox = await start_sandbox(read_only=[str(public_dir)])
    result = await sandbox.exec(f"cat {public_dir}/data.txt; touch {public_dir}/new")
    assert result.stdout == "shown"
    assert "Read-only file system" in result.stderr


async def test_a_folder_that_a_writable_one_would_hide_cannot_be_shown(needs_bwrap: None) -> None:
    with pytest.raises(SandboxError, match="read_only names /tmp, which the writable folder /tmp would hide"):
        await BwrapEnvironment(read_only=["/tmp"]).start()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
async def test_a_terminal_session_survives_between_commands(sandbox: BwrapEnvironment) -> None:
    await sandbox.exec("tmux new-session -d -s work")
    await sandbox.exec("tmux send-keys -t work 'tty > terminal' Enter")
    await until(lambda: _not_empty(sandbox, "terminal"))
    assert (await sandbox.read_file("terminal")).startswith(b"/dev/pts/")


async def test_a_command_that_is_too_long_reports_it(sandbox: BwrapEnvironment) -> None:
    result = await sandbox.exec(f"printf %s {'x' * 300_000} | wc -c")
    assert (result.exit_code, "Write it to a file" in result.stderr) == (126, True)
    assert (await sandbox.exec(f"printf %s {'x' * 120_000} | wc -c")).stdout == "120000\n"


async def test_everything_that_runs_can_be_ended_while_files_stay(sandbox: BwrapEnvironment) -> None:
    await sandbox.exec("setsid sleep 906 & nohup sleep 907 & echo kept > file")
    foreground = sandbox.exec("sleep 908")
    ended, _ = await asyncio.gather(foreground, _kill_soon(sandbox))
    assert ended.exit_code == 137
    assert not await _runs(sandbox, "sleep 90")
    assert await sandbox.read_file("file") == b"kept\n"


async def _kill_soon(sandbox: BwrapEnvironment) -> None:
    await until(lambda: _runs(sandbox, "sleep 908"))
    await sandbox.kill_processes()


async def _runs(sandbox: BwrapEnvironment, command: str) -> bool:
    return command in (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout


async def _not_empty(sandbox: BwrapEnvironment, path: str) -> bool:
    return (await sandbox.exec(f"test -s {path}")).exit_code == 0
