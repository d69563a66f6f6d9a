"""Scorings outside of experiments are found again, wherever they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk.record.project_files.known_folders import read_scorings, write_scoring


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".evsys").mkdir()
    return tmp_path


def models(roots: list[Path], *, elsewhere: bool) -> list[object]:
    return sorted(str(scoring["model"]) for scoring in read_scorings(roots, elsewhere=elsewhere))


def test_those_below_a_root_and_those_written_elsewhere_are_found(project: Path) -> None:
    usual, other = project / "outputs/benchmarks/routing/big", project / "mine"
    for folder, model in ((usual, "big"), (other, "small")):
        folder.mkdir(parents=True)
        write_scoring(folder, "benchmark run", {"model": model})
    assert models([project / "outputs"], elsewhere=True) == ["big", "small"]  # each once
    assert models([project / "outputs"], elsewhere=False) == ["big"]


def test_what_was_removed_or_damaged_is_passed_over(project: Path) -> None:
    folder = project / "mine"
    folder.mkdir()
    record = write_scoring(folder, "eval model", {"model": "small"})
    assert record["kind"] == "eval model"
    (folder / "result.json").write_text("{", "utf-8")
    assert models([], elsewhere=True) == []
    (folder / "result.json").unlink()
    assert models([], elsewhere=True) == []
