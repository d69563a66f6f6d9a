"""Pulling, adding and listing: what the workspace does when nothing goes wrong."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import stat
from pathlib import Path

import pytest

from evsys_sdk.data.workspace.reference import content_id
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import DataError, WorkspaceError

from .workspace_project import benchmark_file, chat_row, dataset_file, task_row, write_rows


def test_a_pulled_dataset_has_the_bytes_of_its_source_and_a_manifest_that_describes_them(tmp_path: Path) -> None:
    source = dataset_file(tmp_path)
    (source.parent / "metadata.yaml").write_text("description: greetings\ncollected: 2024-05-01\n", encoding="utf-8")

    pulled = Workspace(tmp_path).pull_dataset(name="sft")

    content = source.read_bytes()
    assert pulled.path == tmp_path / ".evsys" / "datasets" / f"{pulled.id}.jsonl"
    assert pulled.path.read_bytes() == content
    manifest = json.loads((pulled.path.parent / f"{pulled.id}.manifest.json").read_text(encoding="utf-8"))
    assert manifest["sha256"] == hashlib.sha256(content).hexdigest()
    assert (manifest["rows"], manifest["bytes"], manifest["version"]) == (3, len(content), 1)
    assert (manifest["format"], manifest["complete"]) == ("chat_messages", True)
    assert manifest["lineage"] == {
        "origin": "project",
        "source": "data/datasets/sft/v1/train.jsonl",
        "parent": None,
        "transforms": [],
    }
    assert manifest["metadata"] == {"description": "greetings", "collected": "2024-05-01"}
    assert list(pulled.rows()) == [json.loads(line) for line in content.splitlines()]


def test_the_same_content_has_the_same_id_in_another_project(tmp_path: Path) -> None:
    ids = set[str]()
    for project in (tmp_path / "one", tmp_path / "another"):
        dataset_file(project)
        ids.add(Workspace(project).pull_dataset(name="sft").id)
    assert len(ids) == 1


def test_an_id_differs_by_kind_name_version_split_and_content() -> None:
    base = {"kind": "dataset", "name": "a", "version": 1, "split": "train", "sha256": "0" * 64}
    changes = [{}, {"kind": "benchmark"}, {"name": "b"}, {"version": 2}, {"split": "test"}, {"sha256": "1" * 64}]
    assert len({content_id(**{**base, **change}) for change in changes}) == len(changes)


def test_a_hit_needs_no_source(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    benchmark_file(tmp_path)
    workspace = Workspace(tmp_path)
    train, exam = workspace.pull_dataset(name="sft"), workspace.pull_benchmark(name="exam")

    shutil.rmtree(tmp_path / "data")

    assert workspace.pull_dataset(id=train.id) == train
    assert workspace.pull_dataset(name="sft") == train
    assert Workspace(tmp_path).pull_benchmark(name="exam") == exam


def test_cached_files_are_read_only(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    pulled = Workspace(tmp_path).pull_dataset(name="sft")
    for path in pulled.path.parent.glob("sft*"):
        assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH), path


def test_a_project_file_that_changes_gets_a_new_id_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = Workspace(tmp_path)
    dataset_file(tmp_path)
    before = workspace.pull_dataset(name="sft")
    dataset_file(tmp_path, rows=4)

    after = workspace.pull_dataset(name="sft")

    assert before.id in caplog.text
    assert after.id in caplog.text
    assert after.id != before.id
    assert workspace.pull_dataset(id=before.id).manifest.rows == 3


def test_pulling_a_path_of_the_project_gives_the_id_its_name_gives(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    source = dataset_file(tmp_path, version=2)
    tasks = benchmark_file(tmp_path)
    assert workspace.pull_dataset(path=source).id == workspace.pull_dataset(name="sft@v2").id
    assert workspace.pull_dataset(path=source.parent).id == workspace.pull_dataset(name="sft@v2").id
    assert workspace.pull_benchmark(path=tasks.parent).id == workspace.pull_benchmark(name="exam").id


def test_a_path_elsewhere_is_cached_but_takes_no_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "elsewhere" / "my rows.jsonl", [chat_row("hi")])
    workspace = Workspace(tmp_path / "project")

    pulled = workspace.pull_dataset(path=path)

    assert pulled.manifest.lineage.origin == "path"
    assert workspace.pull_dataset(id=pulled.id) == pulled
    with pytest.raises(WorkspaceError, match="'my_rows' is unknown"):
        workspace.pull_dataset(name=pulled.name)


def test_rows_with_a_byte_order_mark_blank_lines_or_gzip_are_read(tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}'
    (tmp_path / "plain.jsonl").write_bytes(lines)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines))
    workspace = Workspace(tmp_path)

    plain = workspace.pull_dataset(path=tmp_path / "plain.jsonl")
    packed = workspace.pull_dataset(path=tmp_path / "packed.jsonl.gz")

    assert list(plain.rows()) == list(packed.rows()) == [{"a": 1}, {"a": 2}]
    assert plain.manifest.rows == packed.manifest.rows == 2
    assert plain.manifest.sha256 == packed.manifest.sha256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\nnot json\n', r"train\.jsonl:2: .*not JSON"),
        (b'{"a": 1}\n\n[1]\n', r"train\.jsonl:3: .*must be a JSON object"),
        (b'{"a": 1}\n{"a": NaN}\n', r"train\.jsonl:2: NaN is not JSON"),
        (b'{"a": "\xff"}\n', r"train\.jsonl:1: "),
        (b"", r"train\.jsonl: there are no rows"),
        (b"\n\n", r"train\.jsonl: there are no rows"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_with_their_line_and_leave_nothing(
    tmp_path: Path, content: bytes, message: str
) -> None:
    dataset_file(tmp_path).write_bytes(content)
    with pytest.raises(DataError, match=rf"^data/datasets/sft/v1/{message}"):
        Workspace(tmp_path).pull_dataset(name="sft")
    assert [path.name for path in (tmp_path / ".evsys" / "datasets").iterdir() if path.suffix != ".lock"] == []


def test_a_missing_file_is_refused_with_the_closest_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", [chat_row("hi")])
    with pytest.raises(DataError, match=r"no such file\. Did you mean 'train\.jsonl'"):
        Workspace(tmp_path).pull_dataset(path=tmp_path / "trian.jsonl")


@pytest.mark.parametrize("given", [{}, {"id": "a", "name": "b"}, {"name": "b", "path": "c"}])
def test_exactly_one_of_id_name_and_path_is_needed(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(WorkspaceError, match="exactly one of id, name and path"):
        Workspace(tmp_path).pull_dataset(**given)


def test_adding_twice_changes_nothing_and_new_content_is_the_next_version(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    path = write_rows(tmp_path / "a.jsonl", [chat_row("a")])

    first, again = workspace.add("dataset", path, "sft"), workspace.add("dataset", path, "sft")
    write_rows(path, [chat_row("b")])
    second = workspace.add("dataset", path, "sft")
    write_rows(path, [chat_row("a")])
    old = workspace.add("dataset", path, "sft")

    assert (first.is_new, again.is_new, second.is_new, old.is_new) == (True, False, True, False)
    assert first.rows == again.rows == old.rows
    assert (first.rows.version, second.rows.version) == (1, 2)
    assert workspace.pull_dataset(name="sft") == second.rows


def test_a_second_split_joins_the_version_it_is_missing_from(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    path = write_rows(tmp_path / "a.jsonl", [chat_row("a")])
    assert workspace.add("dataset", path, "sft", version=3).rows.version == 3
    assert workspace.add("dataset", path, "sft", split="test").rows.version == 3
    assert workspace.pull_dataset(name="sft:test").split == "test"


def test_a_version_that_exists_with_other_content_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    dataset_file(tmp_path, version=2)
    path = write_rows(tmp_path / "a.jsonl", [chat_row("a")])
    with pytest.raises(WorkspaceError, match=r"'sft@v2:train' exists with other content .*a version never changes"):
        workspace.add("dataset", path, "sft", version=2)
    assert workspace.add("dataset", path, "sft").rows.version == 3


def test_adding_what_the_project_already_has_gives_the_same_id(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    source = dataset_file(tmp_path)
    copy = tmp_path / "copy.jsonl"
    shutil.copy(source, copy)

    added = workspace.add("dataset", copy, "sft")

    assert added.rows == workspace.pull_dataset(name="sft")


def test_a_name_with_two_contents_for_one_version_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.add("dataset", write_rows(tmp_path / "a.jsonl", [chat_row("a")]), "sft")
    dataset_file(tmp_path, version=1)
    with pytest.raises(WorkspaceError, match=r"'sft@v1:train' has two contents: data/datasets/sft/v1/train\.jsonl"):
        workspace.pull_dataset(name="sft")


def test_a_benchmark_takes_only_tasks_and_says_how_to_make_them(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mixed.jsonl", [task_row(1), chat_row("hi")])
    with pytest.raises(DataError, match=r"mixed\.jsonl:2: a harbor_task row needs .*transform chat_to_harbor_task"):
        Workspace(tmp_path).add("benchmark", path, "exam")


def test_a_benchmark_refuses_a_task_that_could_not_be_verified(tmp_path: Path) -> None:
    broken = {**task_row(2), "verifier": {"kind": "in_process"}}
    path = write_rows(tmp_path / "tasks.jsonl", [task_row(1), broken])
    with pytest.raises(DataError, match=r"tasks\.jsonl:2: .*fn_name"):
        Workspace(tmp_path).add("benchmark", path, "exam")


def test_a_benchmark_refuses_a_task_id_that_occurs_twice(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "tasks.jsonl", [task_row(1), task_row(2), task_row(1)])
    with pytest.raises(DataError, match=r"tasks\.jsonl:3: task_id 't1' already occurs in line 1"):
        Workspace(tmp_path).add("benchmark", path, "exam")


def test_mixed_rows_are_counted_by_format(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mixed.jsonl", [chat_row("a"), {"query": "b"}, chat_row("c")])
    manifest = Workspace(tmp_path).add("dataset", path, "sft").rows.manifest
    assert (manifest.format, manifest.formats) == ("mixed", {"chat_messages": 2, "unknown": 1})


def test_a_list_has_each_id_once_whether_cached_or_not(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    dataset_file(tmp_path, "pulled")
    dataset_file(tmp_path, "waiting", rows=5)
    pulled = workspace.pull_dataset(name="pulled")
    added = workspace.add("dataset", write_rows(tmp_path / "a.jsonl", [{"x": 1}]), "added").rows

    listed = {listing.name: listing for listing in workspace.list("dataset")}

    assert {name: one.where for name, one in listed.items()} == {
        "added": "cache (added)",
        "pulled": "project, cache",
        "waiting": "project",
    }
    assert (listed["added"].id, listed["pulled"].id) == (added.id, pulled.id)
    assert listed["waiting"].rows == 5
    assert workspace.pull_dataset(id=listed["waiting"].id).name == "waiting"


def test_one_bad_file_does_not_hide_the_others_in_a_list(tmp_path: Path) -> None:
    dataset_file(tmp_path, "good")
    bad = dataset_file(tmp_path, "bad").parent
    (bad / "metadata.yaml").write_text("a: [", encoding="utf-8")

    listed = {listing.name: listing for listing in Workspace(tmp_path).list("dataset")}

    assert listed["good"].problem is None
    assert listed["bad"].id is None
    assert "metadata.yaml: this is not YAML" in str(listed["bad"].problem)


def test_showing_does_not_pull(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    shown = Workspace(tmp_path).show("dataset", "sft", rows=2)
    assert shown.manifest is None
    assert [row["messages"][0]["content"] for row in shown.preview] == ["train 1 0", "train 1 1"]
    assert not (tmp_path / ".evsys").exists()


def test_show_understands_ids_names_versions_and_splits(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for version in (1, 2):
        dataset_file(tmp_path, version=version)
        dataset_file(tmp_path, version=version, split="test")
    pulled = workspace.pull_dataset(name="sft@v1")
    waiting = workspace.show("dataset", "sft@v2:test").listing.id
    assert workspace.show("dataset", pulled.id).manifest == pulled.manifest
    assert workspace.show("dataset", "sft").listing.version == 2
    assert workspace.show("dataset", str(waiting)).listing.split == "test"
