"""Rows of a run: loaded and transformed as the config says, and noted so that anybody can tell which they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import DataConfig, ExperimentConfig, Workspace, register_transform
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.errors import DataError, WorkspaceError
from evsys_sdk.experiment import Experiment
from evsys_sdk.experiment.arms.rows import RowLoader, content_hash
from evsys_sdk.experiment.plan.estimate import estimate_run
from evsys_sdk.registry import REGISTRIES

ROWS = [{"query": "weather in Oslo", "tool": "weather"}, {"query": "call Ada", "tool": "phone"}]


@pytest.fixture
def loader(tmp_path: Path) -> RowLoader:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return RowLoader(LocalDataStore(), tmp_path / "run")


def notes(tmp_path: Path) -> list[dict[str, Any]]:
    return json.loads((tmp_path / "run" / "datasets.json").read_text(encoding="utf-8"))


def data(**fields: Any) -> DataConfig:
    return DataConfig.model_validate(fields)


def test_rows_are_transformed_and_noted_with_their_hash(loader: RowLoader, tmp_path: Path) -> None:
    chosen = data(path="rows.jsonl", transforms=[{"kind": "drop_fields", "params": {"fields": ["tool"]}}])
    rows = loader(chosen)
    assert rows == [{"query": row["query"]} for row in ROWS]
    [note] = notes(tmp_path)
    assert (note["rows"], note["sha256"]) == (2, content_hash(rows))
    assert "rows.jsonl" in note["source"]


def test_each_set_of_rows_is_noted_once(loader: RowLoader, tmp_path: Path) -> None:
    train = data(path="rows.jsonl")
    held_out = data(source_kind="in_memory", rows=ROWS[:1])
    for chosen in (train, held_out, train):
        loader(chosen)
    assert [note["rows"] for note in notes(tmp_path)] == [2, 1]


def test_a_dataset_named_by_name_is_noted_with_the_id_it_resolved_to(loader: RowLoader, tmp_path: Path) -> None:
    Workspace().add("dataset", tmp_path / "rows.jsonl", name="tools")
    cached = Workspace().pull_dataset(name="tools")
    assert loader(data(dataset_name="tools")) == ROWS
    loader(data(source_kind="in_memory", rows=ROWS[:1]))
    by_name, inline = notes(tmp_path)
    assert (by_name["id"], by_name["version"]) == (cached.id, cached.version)
    assert by_name["source_sha256"] == cached.manifest.sha256
    assert "id" not in inline


def test_the_hash_follows_content_and_order() -> None:
    assert content_hash(ROWS) == content_hash([{"tool": "weather", "query": "weather in Oslo"}, ROWS[1]])
    assert content_hash(ROWS) != content_hash(ROWS[::-1])
    assert content_hash(ROWS) != content_hash([{**ROWS[0], "tool": "umbrella"}, ROWS[1]])
    assert content_hash([{"a": "\ud800"}]) != content_hash([{"a": "?"}])


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"path": "nowhere.jsonl"}, "nowhere.jsonl"), ({"dataset_name": "nothing"}, "nothing")],
)
def test_what_is_not_there_is_named(fields: dict[str, Any], message: str, loader: RowLoader) -> None:
    with pytest.raises((DataError, WorkspaceError), match=message):
        loader(data(**fields))


def test_a_run_notes_what_it_trained_and_was_scored_on(config: Callable[..., ExperimentConfig]) -> None:
    original = config()
    assert original.run is not None
    assert original.run.data is not None
    rows = original.run.data.rows
    assert rows is not None
    evaluation = {
        "metrics": [{"kind": "exact_match"}],
        "eval_data": {"source_kind": "in_memory", "rows": rows[:2]},
    }
    result = Experiment(config({"eval": evaluation}, params={"max_steps": 1})).run()
    noted = json.loads((result.path / "r" / "datasets.json").read_text(encoding="utf-8"))
    assert [(note["rows"], note["sha256"]) for note in noted] == [(6, content_hash(rows)), (2, content_hash(rows[:2]))]


class _Counted:
    """Shouts, and counts how many rows it was asked for."""

    seen = 0

    def __call__(self, rows: Any) -> Any:
        for row in rows:
            type(self).seen += 1
            yield {**row, "query": row["query"].upper()}


@pytest.fixture
def counted(tmp_path: Path, loader: RowLoader) -> Iterator[DataConfig]:
    """A dataset of the workspace with a transform that counts."""
    Workspace().add("dataset", tmp_path / "rows.jsonl", name="tools")
    _Counted.seen = 0
    with REGISTRIES["transform"].isolated():
        register_transform("counted")(_Counted)
        yield data(dataset_name="tools", transforms=[{"kind": "counted"}])


def test_what_transforms_make_of_a_dataset_is_made_once(loader: RowLoader, counted: DataConfig, tmp_path: Path) -> None:
    first = loader(counted)
    assert loader(counted) == first == [{**row, "query": row["query"].upper()} for row in ROWS]
    assert _Counted.seen == len(ROWS)
    [note] = notes(tmp_path)
    derived = Workspace().pull_dataset(id=note["derived_id"])
    assert (list(derived.rows()), derived.manifest.lineage.parent) == (first, note["id"])


def test_a_run_keeps_its_rows_when_the_dataset_changes_and_the_next_run_has_the_new_ones(
    loader: RowLoader, counted: DataConfig, tmp_path: Path
) -> None:
    first = loader(counted)
    (tmp_path / "more.jsonl").write_text(json.dumps({"query": "ring Bo", "tool": "phone"}) + "\n", encoding="utf-8")
    Workspace().add("dataset", tmp_path / "more.jsonl", name="tools")
    assert loader(counted) == first
    [before] = notes(tmp_path)
    assert [row["query"] for row in RowLoader(LocalDataStore(), tmp_path / "run")(counted)] == ["RING BO"]
    [after] = notes(tmp_path)
    assert before["derived_id"] != after["derived_id"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_a_warning(
    loader: RowLoader,
    counted: DataConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise WorkspaceError(".evsys/datasets: rows could not be written there: no space left on device")

    monkeypatch.setattr(Workspace, "materialise", refuse)
    with caplog.at_level("WARNING"):
        assert [row["query"] for row in loader(counted)] == [row["query"].upper() for row in ROWS]
    assert "no space left on device" in caplog.text
    assert "derived_id" not in notes(tmp_path)[0]


@pytest.mark.usefixtures("loader")
def test_the_plan_of_a_run_reads_the_same_rows(tmp_path: Path) -> None:
    Workspace().add("dataset", tmp_path / "rows.jsonl", name="tools")
    chat = {"kind": "jsonl_to_chat", "params": {"user_template": "{query}", "assistant_template": "{tool}"}}
    run = {
        "name": "r",
        "data": {"dataset_name": "tools", "transforms": [chat]},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"batch_size": 1, "num_epochs": 3}},
        "backend": {"kind": "mock"},
    }
    planned = ExperimentConfig.model_validate({"name": "e", "run": run})
    assert planned.run is not None
    assert estimate_run(planned.run, planned).steps == 3 * len(ROWS)
