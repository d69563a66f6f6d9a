"""Where experiments are looked for, and how runs say that they are somewhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evsys_sdk import DataError
from evsys_sdk.history.find import experiment_roots
from evsys_sdk.record.layout import OUTPUT_ROOTS
from evsys_sdk.record.project_files.known_folders import read_output_roots, remember_output_root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project" / ".evsys").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_outputs_here_and_at_the_project_root_are_looked_at(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "outputs").mkdir()
    (project / "deep" / "outputs").mkdir(parents=True)
    monkeypatch.chdir(project / "deep")
    assert experiment_roots() == [project / "deep" / "outputs", project / "outputs"]


def test_a_remembered_root_is_looked_at_once(project: Path, tmp_path: Path) -> None:
    (tmp_path / "big_disk").mkdir()
    remember_output_root(tmp_path / "big_disk")
    remember_output_root("../big_disk")
    assert read_output_roots() == [tmp_path / "big_disk"]
    assert experiment_roots() == [tmp_path / "big_disk"]


def test_the_usual_folder_is_not_noted(project: Path) -> None:
    remember_output_root("outputs")
    assert not (project / ".evsys" / OUTPUT_ROOTS).exists()


def test_a_project_that_is_moved_takes_its_experiments_along(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / ".evsys" / "runs").mkdir()
    remember_output_root(".evsys/runs")
    project.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert experiment_roots() == [tmp_path / "elsewhere" / ".evsys" / "runs"]


def test_a_folder_that_is_gone_is_dropped_by_the_next_note_and_not_looked_at(project: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        remember_output_root(tmp_path / name)
    (tmp_path / "one").rmdir()
    assert experiment_roots() == [tmp_path / "two"]
    remember_output_root(tmp_path / "three")
    assert read_output_roots() == [tmp_path / "two", tmp_path / "three"]


def test_given_roots_take_the_place_of_all_others(project: Path, tmp_path: Path) -> None:
    (project / "outputs").mkdir()
    (tmp_path / "mine").mkdir()
    assert experiment_roots([tmp_path / "mine", str(tmp_path / "mine")]) == [tmp_path / "mine"]
    with pytest.raises(DataError, match=r"--root nowhere: there is no such folder"):
        experiment_roots(["nowhere"])


def test_a_note_that_cannot_be_written_is_a_warning(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / ".evsys" / OUTPUT_ROOTS).mkdir()
    remember_output_root(tmp_path / "far")
    assert "could not be listed" in caplog.text


def test_a_temporary_folder_of_a_project_elsewhere_is_not_noted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "scratch"))
    remember_output_root(tmp_path / "scratch" / "outputs")
    assert read_output_roots() == []


def test_damaged_notes_are_read_as_far_as_they_go(project: Path, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    content = b"\xff\xfe\n\n  \nno\x00where\n" + os.fsencode(tmp_path / "good") + b"\n"
    (project / ".evsys" / OUTPUT_ROOTS).write_bytes(content)
    assert experiment_roots() == [tmp_path / "good"]


def test_processes_that_note_at_once_lose_nothing(project: Path, tmp_path: Path) -> None:
    module = "evsys_sdk.record.project_files.known_folders"
    code = f"import sys; from {module} import remember_output_root as note\nnote(sys.argv[1])\n"
    for name in "abc":
        (tmp_path / name).mkdir()
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)]) for name in "abc"]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    assert sorted(read_output_roots()) == [tmp_path / name for name in "abc"]
