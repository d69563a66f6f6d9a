"""Rows after transforms: made once for the same parent, params and code, and made again when any of them changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk.config import TransformSpec
from evsys_sdk.data.workspace import manifest
from evsys_sdk.data.workspace.workspace import Workspace
from evsys_sdk.errors import ConfigError, DataError, WorkspaceError
from evsys_sdk.registry import register_transform

from .workspace_project import benchmark_file, chat_row, dataset_file, write_rows

Row = dict[str, Any]


class Counting:
    """Adds a field, and remembers how often it was called."""

    calls = 0

    class Config(BaseModel, extra="forbid"):
        field: str = "extra"
        value: int = 1

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
        Counting.calls += 1
        for row in rows:
            yield {**row, self.cfg.field: self.cfg.value}


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_transform("counting")(Counting)
    Counting.calls = 0


def spec(**params: Any) -> TransformSpec:
    return TransformSpec(kind="counting", params=params)


def test_the_same_parent_and_transforms_are_made_once(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")

    derived = workspace.materialise(parent, [spec(value=2)])
    again = Workspace(tmp_path).materialise(parent, [spec(value=2)])

    assert derived == again
    assert Counting.calls == 1
    assert [row["extra"] for row in derived.rows()] == [2, 2, 2]
    assert (derived.manifest.lineage.origin, derived.manifest.lineage.parent) == ("derived", parent.id)
    (record,) = derived.manifest.lineage.transforms
    assert (record.kind, record.params) == ("counting", {"field": "extra", "value": 2})


def test_params_that_mean_the_same_are_the_same(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")
    ids = {workspace.materialise(parent, [step]).id for step in (spec(), spec(value=1), spec(value=1, field="extra"))}
    assert len(ids) == 1


def test_other_params_order_parent_or_code_are_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset_file(tmp_path, version=1)
    dataset_file(tmp_path, version=2)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")
    ids = [
        workspace.materialise(parent, [spec()]).id,
        workspace.materialise(parent, [spec(value=2)]).id,
        workspace.materialise(parent, [spec(), spec(value=2)]).id,
        workspace.materialise(parent, [spec(value=2), spec()]).id,
        workspace.materialise(workspace.pull_dataset(name="sft@v1"), [spec()]).id,
    ]
    monkeypatch.setattr(manifest, "code_hash", lambda target: "0" * 16)
    ids.append(workspace.materialise(parent, [spec()]).id)
    assert len(set(ids)) == len(ids)


def test_without_transforms_the_parent_is_the_answer(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")
    assert workspace.materialise(parent, []) == parent


def test_derived_rows_are_reached_by_id_but_not_by_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [chat_row("a")])
    workspace = Workspace(tmp_path)
    parent = workspace.add("dataset", path, "sft").rows
    derived = workspace.materialise(parent, [spec()])

    assert workspace.pull_dataset(id=derived.id) == derived
    assert workspace.pull_dataset(name="sft") == parent
    assert [listing.id for listing in workspace.list("dataset")] == [parent.id]
    assert {listing.id for listing in workspace.list("dataset", derived=True)} == {parent.id, derived.id}


def test_damaged_derived_rows_are_made_again(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")
    derived = workspace.materialise(parent, [spec()])
    content = derived.path.read_bytes()
    derived.path.chmod(0o644)
    derived.path.write_bytes(content[:-5])

    with pytest.raises(
        WorkspaceError, match=f"Run the experiment again: these rows are derived again from {parent.id}"
    ):
        workspace.pull_dataset(id=derived.id)
    assert workspace.materialise(parent, [spec()]).path.read_bytes() == content
    assert Counting.calls == 2


def test_a_transform_that_fails_leaves_nothing(tmp_path: Path) -> None:
    @register_transform("failing")
    class Failing:
        def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
            for number, row in enumerate(rows):
                if number == 2:
                    raise FileNotFoundError("lexicon.txt")
                yield row

    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")
    with pytest.raises(DataError, match=r"transform 'failing'.*row 3.*lexicon\.txt"):
        workspace.materialise(parent, [TransformSpec(kind="failing")])
    assert [verdict.id for verdict in workspace.verify("dataset")] == [parent.id]


def test_transforms_that_drop_every_row_or_make_what_is_not_json_are_refused(tmp_path: Path) -> None:
    @register_transform("dropping")
    class Dropping:
        def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
            return iter(())

    @register_transform("strange")
    class Strange:
        def __call__(self, rows: Iterable[Row]) -> Iterator[Row]:
            for row in rows:
                yield {**row, "score": float("nan")}

    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    parent = workspace.pull_dataset(name="sft")
    with pytest.raises(DataError, match=f"{parent.id} after dropping: there are no rows"):
        workspace.materialise(parent, [TransformSpec(kind="dropping")])
    with pytest.raises(DataError, match=f"{parent.id} after strange:1: .*cannot be written as JSON"):
        workspace.materialise(parent, [TransformSpec(kind="strange")])


def test_bad_params_are_config_errors(tmp_path: Path) -> None:
    dataset_file(tmp_path)
    workspace = Workspace(tmp_path)
    with pytest.raises(ConfigError, match="feild"):
        workspace.materialise(workspace.pull_dataset(name="sft"), [spec(feild="x")])


def test_a_transformed_benchmark_is_still_a_benchmark(tmp_path: Path) -> None:
    benchmark_file(tmp_path)
    workspace = Workspace(tmp_path)
    derived = workspace.materialise(workspace.pull_benchmark(name="exam"), [spec(field="toolkit")])
    assert derived.manifest.kind == "benchmark"
    assert workspace.pull_benchmark(id=derived.id) == derived
