"""A cache that was left half-written, cut off or altered is never used: it is written again or refused."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.workspace import row_cache
from evsys_sdk.data.workspace.row_cache import CachedRows
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import WorkspaceError

from .workspace_project import chat_row, dataset_file, write_rows


def manifest_of(rows: CachedRows) -> Path:
    return rows.path.with_name(f"{rows.id}.manifest.json")


def rewrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def change_manifest(path: Path, **changes: Any) -> None:
    rewrite(path, json.dumps({**json.loads(path.read_bytes()), **changes}).encode())


def alter_bytes(rows: CachedRows) -> None:
    rewrite(rows.path, rows.path.read_bytes().replace(b"TRAIN", b"DRAIN"))


def cut_off(rows: CachedRows) -> None:
    rewrite(rows.path, rows.path.read_bytes()[:-10])


def append_a_row(rows: CachedRows) -> None:
    rewrite(rows.path, rows.path.read_bytes() + b"{}\n")


DAMAGES: dict[str, tuple[Callable[[CachedRows], None], str]] = {
    "altered": (alter_bytes, "it was altered: its sha256 is"),
    "cut off": (cut_off, "it is cut off: "),
    "longer": (append_a_row, "it is longer than it was: "),
    "rows missing": (lambda rows: rows.path.unlink(), "its rows .* are missing"),
    "no manifest": (lambda rows: manifest_of(rows).unlink(), "it has no manifest"),
    "empty manifest": (lambda rows: rewrite(manifest_of(rows), b""), "its manifest .* cannot be read"),
    "incomplete": (
        lambda rows: change_manifest(manifest_of(rows), complete=False),
        "its manifest .* cannot be read .*complete",
    ),
    "other manifest": (
        lambda rows: change_manifest(manifest_of(rows), id="other"),
        "its manifest belongs to the dataset 'other'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_by_verify_and_repaired_from_the_source(tmp_path: Path, damage: str) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    content = pulled.path.read_bytes()
    inflict, reason = DAMAGES[damage]

    inflict(pulled)

    (verdict,) = workspace.verify("dataset")
    assert verdict.problem is not None
    assert re.search(reason, verdict.problem)
    assert workspace.pull_dataset(id=pulled.id).path.read_bytes() == content
    assert [verdict.problem for verdict in workspace.verify("dataset")] == [None]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_without_the_same_source_is_refused(tmp_path: Path, damage: str) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    inflict, reason = DAMAGES[damage]
    inflict(pulled)
    dataset_file(tmp_path, rows=7)  # the same name and version, but other content

    with pytest.raises(WorkspaceError, match=f"'{pulled.id}' .* cannot be used: {reason}.*(restore|Restore)"):
        workspace.pull_dataset(id=pulled.id)
    assert workspace.pull_dataset(name="sft").manifest.rows == 7


def test_an_altered_file_that_kept_its_size_is_noticed_by_its_time(tmp_path: Path) -> None:
    source = dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    alter_bytes(pulled)
    assert pulled.path.stat().st_size == pulled.manifest.bytes
    assert workspace.pull_dataset(name="sft").path.read_bytes() == source.read_bytes()


def test_an_altered_file_that_kept_its_size_and_time_is_found_by_verify(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    alter_bytes(pulled)
    os.utime(pulled.path, ns=(pulled.manifest.mtime_ns, pulled.manifest.mtime_ns))
    (verdict,) = workspace.verify("dataset", "sft")
    assert "it was altered" in str(verdict.problem)


def test_rows_and_manifest_that_were_altered_together_are_found_by_verify(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    append_a_row(pulled)
    content = pulled.path.read_bytes()
    other = workspace.add("dataset", pulled.path, "other").rows.manifest
    changes = {"sha256": other.sha256, "bytes": len(content), "rows": 4, "mtime_ns": pulled.path.stat().st_mtime_ns}
    change_manifest(manifest_of(pulled), **changes)
    (verdict,) = workspace.verify("dataset", pulled.id)
    assert "rows and manifest were altered" in str(verdict.problem)


def test_a_wrong_row_count_in_the_manifest_is_found_by_verify(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    change_manifest(manifest_of(workspace.pull_dataset(name="sft")), rows=2)
    (verdict,) = workspace.verify("dataset")
    assert "it has 2 rows, the file 3" in str(verdict.problem)


def test_a_copied_workspace_is_as_good_as_the_original(tmp_path: Path) -> None:
    dataset_file(tmp_path / "here")
    pulled = Workspace(tmp_path / "here").pull_dataset(name="sft")
    shutil.copytree(tmp_path / "here" / ".evsys", tmp_path / "there" / ".evsys", copy_function=shutil.copyfile)
    again = Workspace(tmp_path / "there").pull_dataset(id=pulled.id)
    assert again.manifest == pulled.manifest
    assert list(again.rows()) == list(pulled.rows())


def test_added_rows_are_restored_from_the_file_they_came_from(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [chat_row("train")])
    workspace = Workspace(tmp_path / "project")
    added = workspace.add("dataset", path, "sft").rows
    cut_off(added)
    assert workspace.pull_dataset(name="sft").path.read_bytes() == path.read_bytes()

    cut_off(added)
    path.unlink()
    with pytest.raises(WorkspaceError, match=r"it is cut off: .*Its rows came from .*a\.jsonl"):
        workspace.pull_dataset(name="sft")


def test_adding_the_content_again_repairs_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [chat_row("train")])
    workspace = Workspace(tmp_path)
    added = workspace.add("dataset", path, "sft").rows
    cut_off(added)
    again = workspace.add("dataset", path, "sft")
    assert again.is_new
    assert again.rows.id == added.id
    assert [verdict.problem for verdict in workspace.verify("dataset")] == [None]


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    shorter = [chat_row("changed")]
    monkeypatch.setattr(type(workspace._local), "rows", lambda self, entry: iter(shorter))
    with pytest.raises(WorkspaceError, match=r"train\.jsonl: it changed while it was being read"):
        workspace.pull_dataset(name="sft")
    assert workspace.verify("dataset") == []


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 200_000])
def test_running_out_of_room_leaves_nothing_behind(tmp_path: Path, size: int) -> None:
    dataset_file(tmp_path, rows=10_000)
    workspace = Workspace(tmp_path)
    with (
        largest_file(size),
        pytest.raises(WorkspaceError, match=r"File too large.*No incomplete file was left.*Free some"),
    ):
        workspace.pull_dataset(name="sft")
    assert [path.suffix for path in (tmp_path / ".evsys" / "datasets").iterdir()] == [".lock"]
    assert workspace.pull_dataset(name="sft").manifest.rows == 10_000


def test_a_full_disk_in_the_middle_of_a_repair_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    cut_off(pulled)
    before = {path.name: path.read_bytes() for path in pulled.path.parent.iterdir()}

    def full_disk(file: Any, rows: Any, where: str) -> str:
        file.write(next(iter(rows)))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(row_cache, "write_lines", full_disk)
        with pytest.raises(WorkspaceError, match="No space left on device"):
            workspace.pull_dataset(name="sft")

    assert {path.name: path.read_bytes() for path in pulled.path.parent.iterdir()} == before
    assert workspace.pull_dataset(name="sft").manifest == workspace.pull_dataset(id=pulled.id).manifest


def test_a_stray_file_is_reported_and_does_not_stop_verify(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    pulled = workspace.pull_dataset(name="sft")
    (pulled.path.parent / "my notes.jsonl").write_text("{}\n", encoding="utf-8")
    problems = {verdict.id: verdict.problem for verdict in workspace.verify("dataset")}
    assert problems[pulled.id] is None
    assert "cannot be used as an id" in str(problems["my notes"])
    assert workspace.pull_dataset(name="sft") == pulled
