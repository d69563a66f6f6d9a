"""Names, versions, splits and ids: what they mean, and that none of them leaves the workspace's folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.data.workspace.reference import Reference, check_name, slug
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import WorkspaceError

from .workspace_project import benchmark_file, chat_row, dataset_file, task_row, write_rows

BAD_NAMES = [
    "",
    " ",
    ".",
    "..",
    "../escape",
    "a/b",
    "a\\b",
    "/etc/passwd",
    "a..b",
    ".hidden",
    "-flag",
    "trailing.",
    "two words",
    "new\nline",
    "nul\x00",
    "naïve",
    "数据",
    "a" * 200,
]


def test_a_name_means_its_latest_version_by_number(tmp_path: Path) -> None:
    for version in (1, 2, 9, 10):
        dataset_file(tmp_path, version=version)
    pulled = Workspace(tmp_path).pull_dataset(name="sft")
    assert pulled.version == 10
    assert next(pulled.rows())["messages"][0]["content"] == "train 10 0"


def test_the_latest_version_may_be_an_added_one(tmp_path: Path) -> None:
    dataset_file(tmp_path, version=4)
    workspace = Workspace(tmp_path)
    added = workspace.add("dataset", write_rows(tmp_path / "new.jsonl", [chat_row("new")]), "sft").rows
    assert added.version == 5
    assert workspace.pull_dataset(name="sft") == added
    assert workspace.pull_dataset(name="sft@v4").version == 4


def test_a_reference_names_a_version_and_a_split(tmp_path: Path) -> None:
    for version in (1, 2):
        for split in ("train", "test"):
            dataset_file(tmp_path, version=version, split=split)
    workspace = Workspace(tmp_path)
    contents = {
        text: next(workspace.pull_dataset(name=text).rows())["messages"][0]["content"]
        for text in ("sft", "sft@v1", "sft:test", "sft@v1:test")
    }
    assert contents == {
        "sft": "train 2 0",
        "sft@v1": "train 1 0",
        "sft:test": "test 2 0",
        "sft@v1:test": "test 1 0",
    }
    assert workspace.pull_dataset(name="sft", split="test").id == workspace.pull_dataset(name="sft:test").id


def test_a_split_that_contradicts_the_reference_or_the_id_is_refused(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    with pytest.raises(WorkspaceError, match="Keep one"):
        workspace.pull_dataset(name="sft:train", split="test")
    with pytest.raises(WorkspaceError, match="is split 'train', not 'test'"):
        workspace.pull_dataset(id=workspace.pull_dataset(name="sft").id, split="test")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sfd", r"'sfd' is unknown; did you mean 'sft'\? Known: other, sft\. Add one with"),
        ("sft@v7", r"has no version v7\. It has: v1, v2"),
        ("sft:dev", r"v2 has no split 'dev'\. It has: train\. Write 'sft@v2:train'"),
        ("sft@2", "is not a reference"),
        ("sft@v2@v3", "is not a reference"),
    ],
)
def test_a_reference_to_nothing_says_what_there_is(tmp_path: Path, name: str, message: str) -> None:
    dataset_file(tmp_path, version=1)
    dataset_file(tmp_path, version=2)
    Workspace(tmp_path).add("dataset", write_rows(tmp_path / "o.jsonl", [chat_row("o")]), "other")
    with pytest.raises(WorkspaceError, match=message):
        Workspace(tmp_path).pull_dataset(name=name)


def test_an_unknown_id_names_the_closest_one(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    right = workspace.pull_dataset(name="sft").id
    with pytest.raises(WorkspaceError, match=f"did you mean '{right}'"):
        workspace.pull_dataset(id=right[:-1] + "_")


def test_a_benchmark_is_found_in_both_folders_and_knows_its_role(tmp_path: Path) -> None:
    benchmark_file(tmp_path, "exam", "benchmark")
    benchmark_file(tmp_path, "quiz", "validation")
    workspace = Workspace(tmp_path)
    assert workspace.pull_benchmark(name="exam").split == "test"
    assert workspace.pull_benchmark(name="quiz").split == "val"


def test_a_benchmark_name_in_both_folders_is_never_guessed(tmp_path: Path) -> None:
    benchmark_file(tmp_path, "exam", "benchmark")
    path = benchmark_file(tmp_path, "exam", "validation")
    workspace = Workspace(tmp_path)
    with pytest.raises(WorkspaceError, match=r"'exam' is ambiguous: .*benchmark/exam.*validation/exam"):
        workspace.pull_benchmark(name="exam")
    assert workspace.pull_benchmark(path=path.parent).split == "val"


def test_unversioned_folders_and_plain_files_have_a_version_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_rows(data / "datasets" / "plain.jsonl", [chat_row("a")])
    write_rows(data / "datasets" / "flat" / "train.jsonl", [chat_row("b")])
    (data / "datasets" / "flat" / "metadata.yaml").write_text("version: 3\n", encoding="utf-8")
    write_rows(data / "benchmark" / "exam" / "v2" / "tasks.jsonl", [task_row(1)])
    workspace = Workspace(tmp_path)
    assert workspace.pull_dataset(name="plain").version == 1
    assert workspace.pull_dataset(name="flat").version == 3
    assert workspace.pull_benchmark(name="exam").version == 2


def test_two_files_for_one_version_are_refused(tmp_path: Path) -> None:
    dataset_file(tmp_path, version=1)
    write_rows(tmp_path / "data" / "datasets" / "sft" / "train.jsonl", [chat_row("again")])
    with pytest.raises(WorkspaceError, match="'sft@v1:train' exists more than once"):
        Workspace(tmp_path).pull_dataset(name="sft")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unsafe_names_and_ids_are_refused_everywhere(tmp_path: Path, name: str) -> None:
    workspace = Workspace(tmp_path / "project")
    path = write_rows(tmp_path / "rows.jsonl", [chat_row("a")])
    before = sorted(tmp_path.rglob("*"))
    for attempt in (
        lambda: workspace.pull_dataset(name=name),
        lambda: workspace.pull_dataset(id=name),
        lambda: workspace.pull_dataset(name="sft", split=name),
        lambda: workspace.add("dataset", path, name),
        lambda: workspace.show("dataset", name),
        lambda: workspace.verify("dataset", name),
    ):
        with pytest.raises(WorkspaceError):
            attempt()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refused_unicode_name_comes_with_one_that_works() -> None:
    with pytest.raises(WorkspaceError, match=r"'Größe 2' cannot be used as a name: .*ASCII.* Try 'Groe_2'"):
        check_name("Größe 2")


def test_folders_with_unusable_names_are_left_out_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset_file(tmp_path, "good")
    dataset_file(tmp_path, "数据 集")
    dataset_file(tmp_path, ".hidden")
    assert [listing.name for listing in Workspace(tmp_path).list("dataset")] == ["good"]
    assert "数据 集 is skipped" in caplog.text
    assert ".hidden" not in caplog.text


def test_a_folder_with_bad_metadata_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset_file(tmp_path, "good")
    folder = write_rows(tmp_path / "data" / "datasets" / "bad" / "train.jsonl", [chat_row("a")]).parent
    (folder / "metadata.yaml").write_text("version: soon\n", encoding="utf-8")
    assert Workspace(tmp_path).pull_dataset(name="good").name == "good"
    assert "metadata.yaml: version must be a whole number such as 2, not 'soon'" in caplog.text
    with pytest.raises(WorkspaceError, match="'bad' is unknown"):
        Workspace(tmp_path).pull_dataset(name="bad")


@given(st.text())
def test_a_slug_is_always_a_usable_name(text: str) -> None:
    assert check_name(slug(text))


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_]{0,20}", fullmatch=True),
    st.none() | st.integers(0, 10**6),
    st.none() | st.sampled_from(["train", "test", "dev_2"]),
)
def test_a_reference_survives_being_written_and_read(name: str, version: int | None, split: str | None) -> None:
    reference = Reference(name, version, split)
    assert Reference.parse(str(reference)) == reference
