"""The environment without isolation: asked for by name, loud about it, and tidy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from evsys_sdk.rollouts.environment import EnvironmentFileError, running
from evsys_sdk.rollouts.environments import unsafe_host
from evsys_sdk.rollouts.environments.unsafe_host import UnsafeHostEnvironment

from .waiting import until


async def test_it_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    unsafe_host._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "evsys_sdk"):
        for _ in range(2):
            async with running(UnsafeHostEnvironment()):
                pass
    assert len([record for record in caplog.records if "without isolation" in record.message]) == 1


async def test_keys_of_the_host_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY", "hunter2")
    async with running(UnsafeHostEnvironment(env={"GIVEN": "1"})) as environment:
        result = await environment.exec("env")
    assert "GIVEN=1" in result.stdout
    assert "hunter2" not in result.stdout


async def test_files_stay_inside_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("untouched", encoding="utf-8")
    async with running(UnsafeHostEnvironment()) as environment:
        await environment.exec(f"ln -s {tmp_path} link")
        for path in (str(tmp_path / "target"), "link/target", "../target", "/app/answer.txt"):
            with pytest.raises(EnvironmentFileError, match="leads out of the working folder"):
                await environment.read_file(path)
            with pytest.raises(EnvironmentFileError, match="leads out of the working folder"):
                await environment.write_file(path, "changed")
        folder = (await environment.exec("pwd")).stdout.strip()
        await environment.write_file(f"{folder}/absolute.txt", "fine")
        assert await environment.read_file("absolute.txt") == b"fine"
    assert (tmp_path / "target").read_text("utf-8") == "untouched"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")
async def test_stopping_ends_its_processes_and_removes_its_folder() -> None:
    environment = UnsafeHostEnvironment()
    await environment.start()
    started = await environment.exec("pwd; touch file; setsid sleep 914 & echo $!; sleep 915 & echo $!")
    folder, *processes = started.stdout.split()
    assert len(processes) == 2
    assert Path(folder, "file").exists()
    await environment.stop()
    assert not Path(folder).exists()
    for process in processes:
        await until(lambda process=process: not Path(f"/proc/{process}/environ").exists())


async def test_a_start_that_fails_removes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(EnvironmentFileError, match="leads out"):
        await UnsafeHostEnvironment(files={"../outside": "x"}).start()
    assert list(tmp_path.iterdir()) == []
