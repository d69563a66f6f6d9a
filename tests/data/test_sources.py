"""Where rows come from, by the config's words."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.config import DataConfig
from evsys_sdk.data import load_rows
from evsys_sdk.data.sources import describe_source
from evsys_sdk.data.stores.in_memory import InMemoryDataStore
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.errors import DataError, MissingExtraError

ROWS = [{"query": "a"}, {"query": "b"}]
STORE = InMemoryDataStore(files={"train.jsonl": ROWS})


@dataclass
class Pulled:
    path: Path


class FakeWorkspace:
    """Answers one id and one name with the same file, and records its requests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[dict[str, str | None]] = []

    def pull_dataset(self, *, id: str | None = None, name: str | None = None) -> Pulled:
        self.asked.append({"id": id, "name": name})
        return Pulled(self.path)


def test_jsonl_is_read_through_the_store() -> None:
    assert list(load_rows(DataConfig(path="train.jsonl"), store=STORE)) == ROWS


@pytest.mark.parametrize("value", [ROWS, {"rows": ROWS}, {"data": ROWS, "version": 1}])
def test_a_json_file_holds_a_list_somewhere(value: Any) -> None:
    store = InMemoryDataStore()
    store.write_json("train.json", value)
    assert list(load_rows(DataConfig(source_kind="json", path="train.json"), store=store)) == ROWS


@pytest.mark.parametrize("value", [{"items": ROWS}, 3, "text", {"rows": {"a": 1}}])
def test_a_json_file_without_a_list_is_refused(value: Any) -> None:
    store = InMemoryDataStore()
    store.write_json("train.json", value)
    with pytest.raises(DataError, match=r"train.json: expected a list of objects"):
        list(load_rows(DataConfig(source_kind="json", path="train.json"), store=store))


def test_a_json_list_with_something_else_in_it_names_the_row() -> None:
    store = InMemoryDataStore()
    store.write_json("train.json", [{"a": 1}, 7])
    with pytest.raises(DataError, match=r"train.json: row 2 must be an object, not 7"):
        list(load_rows(DataConfig(source_kind="json", path="train.json"), store=store))


def test_rows_of_the_config_are_copied_so_that_no_arm_changes_them_for_another() -> None:
    data = DataConfig(source_kind="in_memory", rows=[{"messages": [{"role": "user", "content": "hi"}]}])
    for row in load_rows(data, store=STORE):
        row["messages"].append("changed")
    assert [len(row["messages"]) for row in load_rows(data, store=STORE)] == [1]


def test_a_dataset_by_id_or_name_comes_from_the_workspace_whatever_else_is_set(tmp_path: Path) -> None:
    path = tmp_path / "cached.jsonl"
    path.write_text('{"cached": 1}\n', encoding="utf-8")
    workspace = FakeWorkspace(path)
    by_id = DataConfig(dataset_id="ds-1", path="train.jsonl")
    by_name = DataConfig(dataset_name="sft", source_kind="in_memory", rows=ROWS)
    assert list(load_rows(by_id, store=STORE, workspace=workspace)) == [{"cached": 1}]
    assert list(load_rows(by_name, store=STORE, workspace=workspace)) == [{"cached": 1}]
    assert workspace.asked == [{"id": "ds-1", "name": None}, {"id": None, "name": "sft"}]


def test_a_dataset_without_a_workspace_says_what_to_do() -> None:
    with pytest.raises(DataError, match="dataset 'ds-1' is in the workspace, but none is open here"):
        list(load_rows(DataConfig(dataset_id="ds-1"), store=STORE))


def test_a_source_without_rows_is_an_error() -> None:
    store = InMemoryDataStore(files={"empty.jsonl": []})
    with pytest.raises(DataError, match=r"empty.jsonl holds no rows"):
        list(load_rows(DataConfig(path="empty.jsonl"), store=store))


def test_rows_are_read_one_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\nnot json\n', encoding="utf-8")
    rows = load_rows(DataConfig(path="rows.jsonl"), store=LocalDataStore(root=str(tmp_path)))
    assert next(rows) == {"a": 1}
    with pytest.raises(DataError, match=r"rows.jsonl:2"):
        next(rows)


def test_a_source_has_a_name_for_messages() -> None:
    assert describe_source(DataConfig(path="train.jsonl")) == "train.jsonl"
    assert describe_source(DataConfig(dataset_name="sft")) == "dataset 'sft'"
    assert describe_source(DataConfig(source_kind="in_memory", rows=ROWS)) == "data.rows"
    hugging_face = DataConfig(source_kind="hf_dataset", hf_dataset="a/b", hf_split="test")
    assert describe_source(hugging_face) == "hf_dataset 'a/b' (split test)"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"data source 'hf_dataset' needs the extra 'hf'. Install it with"):
        list(load_rows(DataConfig(source_kind="hf_dataset", hf_dataset="a/b"), store=STORE))
