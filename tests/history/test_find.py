"""EXPERIMENT may be a path, an id, the beginning of one, or a name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from evsys_sdk import DataError
from evsys_sdk.history.find import find_experiment

from .recorded import BEGAN, write_experiment


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "outputs"
    write_experiment(root, "rates", started=BEGAN)
    write_experiment(root, "rates", folder="rates.2", started=BEGAN + 10)
    write_experiment(root, "ratio", started=BEGAN + 20)
    return root


@pytest.mark.parametrize(
    ("reference", "folder"),
    [
        ("outputs/rates", "rates"),
        ("./outputs/rates/", "rates"),
        ("rates-0a1b2c3d", "rates"),
        ("rates.2-0a1b2c3d", "rates.2"),
        ("rates.2", "rates.2"),
        ("rates", "rates.2"),
        ("rati", "ratio"),
        ("rates.", "rates.2"),
    ],
)
def test_every_spelling_finds_its_folder(root: Path, reference: str, folder: str) -> None:
    assert find_experiment(reference) == root / folder


def test_an_absolute_path_needs_no_root(root: Path, tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "elsewhere", "far")
    assert find_experiment(str(path)) == path


def test_a_bare_name_is_a_folder_here_when_no_experiment_has_it(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "here")
    assert find_experiment("here") == path


def test_an_ambiguous_beginning_lists_what_it_may_mean(root: Path) -> None:
    with pytest.raises(DataError, match=r"'rat' is the beginning of 3 ids: rates-0a.*, rates\.2-0a.*, ratio-0a"):
        find_experiment("rat")


def test_a_miss_names_the_closest_and_how_to_list(root: Path) -> None:
    with pytest.raises(DataError, match=r"no experiment 'raets' \(looked in outputs\).*'rates'.*evsys history"):
        find_experiment("raets")


def test_a_miss_with_no_root_at_all_says_where_it_looked() -> None:
    with pytest.raises(DataError, match=r"there is no \./outputs"):
        find_experiment("anything")


def test_the_folder_of_a_run_is_refused_with_its_experiment(root: Path) -> None:
    with pytest.raises(DataError, match=r"one run of an experiment. Name the experiment: outputs/rates"):
        find_experiment("outputs/rates/base__seed42")


@pytest.mark.parametrize("reference", ["", "  ", "a\x00b"])
def test_nothing_is_not_an_experiment(root: Path, reference: str) -> None:
    with pytest.raises(DataError, match="is not the name of an experiment"):
        find_experiment(reference)


def test_given_roots_are_the_only_ones(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(DataError, match="no experiment 'ratio'"):
        find_experiment("ratio", [other])


def test_a_copied_folder_makes_its_id_ambiguous(root: Path) -> None:
    shutil.copytree(root / "ratio", root / "copy")
    with pytest.raises(DataError, match=r"is the id of 2 folders: .*Name one of them by its path"):
        find_experiment("ratio-0a1b2c3d")
    assert find_experiment("outputs/copy") == root / "copy"


def test_an_old_folder_whose_id_is_its_name_is_found_at_its_latest_attempt(root: Path) -> None:
    for folder in ("old", "old.2"):
        path = write_experiment(root, "old", folder=folder, started=BEGAN + (50 if folder == "old.2" else 40))
        (path / "journal.jsonl").unlink()
        stamp = BEGAN + (50 if folder == "old.2" else 40)
        os.utime(path / "config.json", (stamp, stamp))
    assert find_experiment("old") == root / "old.2"
