"""What every environment with a shell promises, and the one without."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.registry import get_environment
from evsys_sdk.rollouts.environment import (
    Environment,
    EnvironmentFileError,
    EnvironmentFileNotFoundError,
    ExecResult,
    NoEnvironment,
    SandboxError,
    running,
    upload_dir,
)

from .bwrap_on_this_machine import skip_or_fail
from .waiting import until


@pytest.mark.parametrize("kind", ["none", "bwrap", "unsafe_host"])
def test_the_built_ins_satisfy_the_protocol(kind: str) -> None:
    assert isinstance(get_environment(kind)(), Environment)


async def test_without_an_environment_a_command_is_refused_with_the_remedy() -> None:
    async with running(NoEnvironment()) as environment:
        with pytest.raises(SandboxError, match=r"no environment\. Set environment: bwrap"):
            await environment.exec("true")
        with pytest.raises(SandboxError, match=r"read 'answer\.txt'"):
            await environment.read_file("answer.txt")
        with pytest.raises(SandboxError, match=r"write 'answer\.txt'"):
            await environment.write_file("answer.txt", "42")


async def test_a_command_gives_both_streams_and_its_exit_code(environment: Environment) -> None:
    result = await environment.exec("echo out; echo err >&2; exit 7")
    assert result == ExecResult("out\n", "err\n", 7)


async def test_a_command_ended_by_a_signal_has_the_exit_code_of_a_shell(environment: Environment) -> None:
    assert (await environment.exec("kill -TERM $$")).exit_code == 128 + 15


async def test_files_stay_but_each_command_is_a_new_shell_in_the_working_folder(environment: Environment) -> None:
    first = await environment.exec("pwd; mkdir sub; cd sub; echo kept > file; export LOST=1")
    second = await environment.exec("pwd; cat sub/file; echo [$LOST]")
    assert second.stdout == f"{first.stdout}kept\n[]\n"


async def test_a_command_can_be_given_a_folder_and_variables(environment: Environment) -> None:
    await environment.exec("mkdir -p deep/er")
    result = await environment.exec('basename "$PWD"; echo "$GREETING"', cwd="deep/er", env={"GREETING": "h\u00e9"})
    assert result.stdout == "er\nh\u00e9\n"


async def test_a_folder_that_does_not_exist_is_reported_to_the_caller_of_the_command(environment: Environment) -> None:
    result = await environment.exec("echo never", cwd="nowhere")
    assert (result.exit_code, result.stdout) == (126, "")
    assert "nowhere" in result.stderr


async def test_files_given_in_the_config_are_there(environment: Environment) -> None:
    assert (await environment.exec("cat given.txt")).stdout == "from the start"


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 5000], ids=["empty", "binary"])
async def test_what_is_written_is_read_back(environment: Environment, content: bytes) -> None:
    await environment.write_file("some/new/folder/data.bin", content)
    await environment.write_file("some/new/folder/data.bin", content)
    assert await environment.read_file("some/new/folder/data.bin") == content
    assert (await environment.exec("wc -c < some/new/folder/data.bin")).stdout.strip() == str(len(content))


async def test_writing_replaces_the_whole_file(environment: Environment) -> None:
    await environment.write_file("note.txt", "a long first version")
    await environment.write_file("note.txt", "short \u2713")
    assert await environment.read_file("note.txt") == "short \u2713".encode()


async def test_reading_a_missing_file_is_an_error_that_names_it(environment: Environment) -> None:
    with pytest.raises(FileNotFoundError, match=r"nope\.txt: cannot be read") as caught:
        await environment.read_file("nope.txt")
    assert isinstance(caught.value, EnvironmentFileNotFoundError)


@pytest.mark.parametrize("make", ["mkdir thing", "mkfifo thing"])
async def test_reading_what_is_no_regular_file_does_not_hang(environment: Environment, make: str) -> None:
    await environment.exec(make)
    with pytest.raises(EnvironmentFileError, match="thing: cannot be read"):
        await environment.read_file("thing")


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_what_is_no_path_is_refused(environment: Environment, path: str) -> None:
    with pytest.raises(EnvironmentFileError, match="is not a path"):
        await environment.read_file(path)
    with pytest.raises(EnvironmentFileError, match="is not a path"):
        await environment.write_file(path, b"")


async def test_out_of_time_the_process_group_is_killed_and_what_was_printed_is_kept(environment: Environment) -> None:
    result = await environment.exec("sleep 900 & echo $!; echo $$; sleep 901", timeout_s=0.3)
    assert (result.exit_code, result.timed_out) == (124, True)
    processes = result.stdout.split()
    assert len(processes) == 2
    await until(lambda: _all_gone(environment, processes))


async def test_a_process_in_the_background_lives_on_and_does_not_hold_up_its_command(environment: Environment) -> None:
    started = await environment.exec("sleep 902 & echo $!", timeout_s=60)
    assert not started.timed_out
    assert (await environment.exec(f"kill -0 {started.stdout}")).exit_code == 0


async def test_a_process_in_the_background_may_continue_printing(environment: Environment) -> None:
    await environment.exec("(while [ ! -e go ]; do sleep 0.01; done; echo late; echo later >&2; touch survived) &")
    await environment.exec("touch go")
    await until(lambda: _exists(environment, "survived"))


async def test_a_cancelled_command_is_killed(environment: Environment) -> None:
    running_command = asyncio.create_task(environment.exec("echo $$ > pid; sleep 903"))
    await until(lambda: _exists(environment, "pid"))
    running_command.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running_command
    process = (await environment.read_file("pid")).decode().strip()
    await until(lambda: _all_gone(environment, [process]))


async def test_commands_can_run_at_the_same_time(environment: Environment) -> None:
    waiting = environment.exec("while [ ! -e flag ]; do sleep 0.01; done; echo seen", timeout_s=60)
    first, second = await asyncio.gather(waiting, environment.exec("touch flag; echo set"))
    assert (first.stdout, second.stdout) == ("seen\n", "set\n")


async def test_output_that_is_no_text_is_shown_as_well_as_it_can_be(environment: Environment) -> None:
    assert (await environment.exec(r"printf 'a\377b'")).stdout == "a\ufffdb"


async def test_a_command_that_no_shell_can_run_is_a_result_and_not_an_error(environment: Environment) -> None:
    result = await environment.exec("echo \0")
    assert result.exit_code == 126
    assert "NUL" in result.stderr
    assert (await environment.exec("echo '\ud800'")).exit_code == 0


async def test_programs_end_silently_when_no_one_reads_them(environment: Environment) -> None:
    result = await environment.exec("yes | head -n 1")
    assert result == ExecResult("y\n", "", 0)


async def test_nothing_can_be_typed_into_a_command(environment: Environment) -> None:
    assert (await environment.exec("read -r line || echo nothing")).stdout == "nothing\n"


async def test_a_folder_is_copied_with_links_empty_folders_and_the_right_to_execute(
    environment: Environment, tmp_path: Path
) -> None:
    (tmp_path / "it's" / "empty").mkdir(parents=True)
    (tmp_path / "it's" / "run.sh").write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    (tmp_path / "it's" / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("it's/run.sh")
    await upload_dir(environment, tmp_path, "copy")
    result = await environment.exec("./copy/link; ls -A copy/*/empty | wc -l; readlink copy/link")
    assert result.stdout.split("\n") == ["ran", "0", "it's/run.sh", ""]


async def test_copying_a_folder_that_does_not_exist_names_it(environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFileNotFoundError, match="absent"):
        await upload_dir(environment, tmp_path / "absent", "copy")


async def test_it_cannot_be_used_before_it_is_started_or_started_twice(environment: Environment) -> None:
    unstarted = type(environment)()
    with pytest.raises(SandboxError, match=r"not running; call `await environment\.start\(\)` first"):
        await unstarted.exec("true")
    with pytest.raises(SandboxError, match="make a new one for each task"):
        await environment.start()
    assert (await environment.exec("true")).exit_code == 0


async def test_it_can_be_stopped_at_any_time_and_more_than_once(environment: Environment) -> None:
    await type(environment)().stop()
    await environment.stop()
    await environment.stop()
    with pytest.raises(SandboxError):
        await environment.exec("true")


async def test_stopping_ends_a_command_that_still_runs(environment: Environment) -> None:
    command = asyncio.create_task(environment.exec("touch begun; sleep 904"))
    await until(lambda: _exists(environment, "begun"))
    await environment.stop()
    results = await asyncio.gather(command, return_exceptions=True)
    assert isinstance(results[0], SandboxError)


def test_it_works_on_the_event_loop_of_another_thread(environment_class: Any) -> None:
    results: list[ExecResult] = []

    async def use() -> None:
        async with running(environment_class()) as environment:
            results.append(await environment.exec("echo here"))
            results.append(await environment.exec("sleep 905", timeout_s=0.1))

    thread = threading.Thread(target=lambda: asyncio.run(use()))
    thread.start()
    thread.join()
    assert [(result.stdout, result.timed_out) for result in results] == [("here\n", False), ("", True)]


async def test_long_output_keeps_its_beginning_and_its_end(environment_class: Any) -> None:
    async with running(environment_class(max_output_bytes=20)) as environment:
        result = await environment.exec("echo beginning; seq 1 100000; echo the end")
    assert result.stdout == "beginning\n\n[... 588893 bytes of output left out ...]\n0\nthe end\n"
    assert result.exit_code == 0


@pytest.mark.parametrize("required", [True, False])
def test_a_machine_without_sandboxes_is_skipped_visibly_or_fails(required: bool) -> None:
    outcome = pytest.fail.Exception if required else pytest.skip.Exception
    with pytest.raises(outcome, match=r"EVSYS_REQUIRE_BWRAP=1.*no bwrap here"):
        skip_or_fail("no bwrap here", required=required)


async def _exists(environment: Environment, path: str) -> bool:
    return (await environment.exec(f"test -e {path}")).exit_code == 0


async def _all_gone(environment: Environment, processes: list[str]) -> bool:
    files = " ".join(f"/proc/{process}/status" for process in processes)
    return not (await environment.exec(f"grep -hs '^State:.[^ZX]' {files}")).stdout
