"""Data stores: what goes in comes out, nothing leaves the root, and a missing file is explained."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.stores.in_memory import InMemoryDataStore
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.errors import DataError
from evsys_sdk.protocols import DataStore
from evsys_sdk.registry import get_data_store

ROWS = [{"a": 1, "deep": {"list": [1, 2]}}, {"a": "ü"}]


@pytest.fixture(params=["local", "in_memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> DataStore:
    params = {"root": str(tmp_path)} if request.param == "local" else {}
    return get_data_store(request.param)(**params)


@pytest.fixture
def local(tmp_path: Path) -> LocalDataStore:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.jsonl").write_text('{"secret": 1}\n', encoding="utf-8")
    return LocalDataStore(root=str(tmp_path / "root"))


def test_both_satisfy_the_protocol(store: DataStore) -> None:
    assert isinstance(store, DataStore)


def test_rows_come_back_equal_and_are_no_one_elses(store: DataStore) -> None:
    assert store.write_jsonl("data/train.jsonl", iter(ROWS)) == 2
    first = list(store.read_jsonl("data/train.jsonl"))
    assert first == ROWS
    first[0]["deep"]["list"].append(3)
    assert list(store.read_jsonl("data/train.jsonl")) == ROWS
    assert ROWS[0]["deep"] == {"list": [1, 2]}


def test_json_comes_back_equal(store: DataStore) -> None:
    store.write_json("x/value.json", {"a": [1, None, "ü"]})
    assert store.read_json("x/value.json") == {"a": [1, None, "ü"]}


def test_a_file_is_replaced_as_a_whole(store: DataStore) -> None:
    store.write_jsonl("rows.jsonl", ROWS)
    store.write_jsonl("rows.jsonl", [{"b": 1}])
    assert list(store.read_jsonl("rows.jsonl")) == [{"b": 1}]


def test_what_exists_is_known_and_listed(store: DataStore) -> None:
    assert list(store.list()) == []
    for path in ("b.jsonl", "data/a.jsonl", "data/b/c.jsonl", "database.jsonl"):
        store.write_jsonl(path, ROWS)
    assert store.exists("data/a.jsonl")
    assert not store.exists("data/nothing.jsonl")
    assert not store.exists("data")
    assert list(store.list()) == ["b.jsonl", "data/a.jsonl", "data/b/c.jsonl", "database.jsonl"]
    assert list(store.list("data/")) == ["data/a.jsonl", "data/b/c.jsonl"]
    assert list(store.list("data")) == ["data/a.jsonl", "data/b/c.jsonl", "database.jsonl"]
    assert list(store.list("data/b")) == ["data/b/c.jsonl"]
    assert list(store.list("nothing/")) == []


@pytest.mark.parametrize("value", [float("nan"), {1}, object()])
def test_what_json_cannot_hold_is_refused(store: DataStore, value: Any) -> None:
    with pytest.raises(DataError, match="cannot be written as JSON"):
        store.write_jsonl("rows.jsonl", [{"a": value}])
    with pytest.raises(DataError, match="cannot be written as JSON"):
        store.write_json("value.json", value)
    assert not store.exists("rows.jsonl")
    assert not store.exists("value.json")


def test_a_missing_file_is_an_error_when_it_is_requested(store: DataStore) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(store.read_jsonl("nothing.jsonl"))
    with pytest.raises(DataError, match="no such file"):
        store.read_json("nothing.json")


def test_an_empty_path_is_refused(store: DataStore) -> None:
    with pytest.raises(DataError):
        store.write_jsonl("", ROWS)


def test_a_missing_local_file_names_the_place_the_root_and_the_remedy(local: LocalDataStore) -> None:
    with pytest.raises(DataError) as caught:
        local.read_jsonl("data/train.jsonl")
    message = str(caught.value)
    assert str(local.root / "data" / "train.jsonl") in message
    assert f"data store root {local.root}" in message
    assert "data_store.params.root" in message


def test_a_missing_file_in_memory_names_the_likely_one() -> None:
    store = InMemoryDataStore(files={"train.jsonl": ROWS})
    with pytest.raises(DataError, match=r"It has: train.jsonl. Did you mean 'train.jsonl'\?"):
        list(store.read_jsonl("trian.jsonl"))


@pytest.mark.parametrize("path", ["link.jsonl", "linked/secret.jsonl"])
def test_a_link_below_the_root_is_read_and_never_written_through(local: LocalDataStore, path: str) -> None:
    (local.root / "link.jsonl").symlink_to(local.root.parent / "secret.jsonl")
    (local.root / "linked").symlink_to(local.root.parent)
    assert list(local.read_jsonl(path)) == [{"secret": 1}]
    with pytest.raises(DataError, match="leads out of the data store's root"):
        local.write_jsonl(path, ROWS)
    assert (local.root.parent / "secret.jsonl").read_text(encoding="utf-8") == '{"secret": 1}\n'


@pytest.mark.parametrize("path", ["../secret.jsonl", "data/../../secret.jsonl", ".."])
def test_a_relative_path_that_leaves_the_root_is_refused(local: LocalDataStore, path: str) -> None:
    for attempt in (local.read_jsonl, local.read_json, local.exists):
        with pytest.raises(DataError, match="leads out of the data store's root"):
            attempt(path)
    with pytest.raises(DataError, match="leads out of the data store's root"):
        local.write_jsonl(path, ROWS)
    assert (local.root.parent / "secret.jsonl").read_text(encoding="utf-8") == '{"secret": 1}\n'


def test_listing_cannot_leave_the_root_either(local: LocalDataStore) -> None:
    with pytest.raises(DataError, match="leads out"):
        local.list("../")


def test_an_absolute_path_can_be_read_but_not_written(local: LocalDataStore) -> None:
    secret = local.root.parent / "secret.jsonl"
    assert list(local.read_jsonl(str(secret))) == [{"secret": 1}]
    assert local.exists(str(secret))
    with pytest.raises(DataError, match="writing outside"):
        local.write_jsonl(str(secret), ROWS)
    with pytest.raises(DataError, match="writing outside"):
        local.write_json(str(local.root / ".." / "new.json"), ROWS)
    assert secret.read_text(encoding="utf-8") == '{"secret": 1}\n'


def test_an_absolute_path_below_the_root_can_be_written(local: LocalDataStore) -> None:
    local.write_jsonl(str(local.root / "rows.jsonl"), ROWS)
    assert list(local.read_jsonl("rows.jsonl")) == ROWS


def test_links_inside_the_root_and_a_root_that_is_a_link_are_fine(local: LocalDataStore) -> None:
    local.write_jsonl("real.jsonl", ROWS)
    (local.root / "link.jsonl").symlink_to("real.jsonl")
    assert list(local.read_jsonl("link.jsonl")) == ROWS
    (local.root.parent / "alias").symlink_to(local.root)
    assert list(LocalDataStore(root=str(local.root.parent / "alias")).read_jsonl("real.jsonl")) == ROWS


def test_paths_that_no_file_can_have_are_data_errors(local: LocalDataStore) -> None:
    (local.root / "circle").symlink_to("circle")
    for path in ("circle", "a\x00b", "x" * 5000, "~nobody-of-this-name/x"):
        with pytest.raises(DataError):
            list(local.read_jsonl(path))
    with pytest.raises(DataError, match="this is a folder"):
        list(local.read_jsonl("."))


def test_a_write_that_fails_leaves_no_trace(local: LocalDataStore) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        raise RuntimeError("source broke")

    with pytest.raises(RuntimeError):
        local.write_jsonl("rows.jsonl", failing())
    assert os.listdir(local.root) == []
    (local.root / "folder").mkdir()
    with pytest.raises(DataError, match="cannot be written"):
        local.write_jsonl("folder", ROWS)


def test_hidden_files_are_listed_only_when_requested(local: LocalDataStore) -> None:
    for path in (".cache/x.jsonl", ".hidden.jsonl", "shown.jsonl"):
        local.write_jsonl(path, ROWS)
    assert list(local.list()) == ["shown.jsonl"]
    assert list(local.list(".cache/")) == [".cache/x.jsonl"]
    assert list(local.list(".hid")) == [".hidden.jsonl"]


def test_the_root_is_where_the_process_was_when_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalDataStore()
    store.write_jsonl("rows.jsonl", ROWS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(store.read_jsonl("rows.jsonl")) == ROWS


def test_many_threads_can_write_and_read_in_memory() -> None:
    store = InMemoryDataStore()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                store.write_jsonl(f"{number}.jsonl", [{"number": number}] * 3)
                assert list(store.read_jsonl(f"{number}.jsonl")) == [{"number": number}] * 3
                store.list()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.list()) == 8


def test_a_reader_keeps_its_version_while_the_file_is_replaced() -> None:
    store = InMemoryDataStore(files={"rows.jsonl": [{"v": 1}, {"v": 1}]})
    rows = store.read_jsonl("rows.jsonl")
    assert next(rows) == {"v": 1}
    store.write_jsonl("rows.jsonl", [{"v": 2}])
    assert list(rows) == [{"v": 1}]
