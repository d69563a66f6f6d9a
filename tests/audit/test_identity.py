"""What the identity of an arm covers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from evsys_sdk.config import RunConfig
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.experiment.arms.rows import RowLoader
from evsys_sdk.experiment.audit.identity import identify_run


def identify(folder: Path, leaked: dict[str, Any]) -> dict[str, Any]:
    for name, row in (("run.jsonl", {"a": 1}), ("phase.jsonl", leaked)):
        (folder / name).write_text(json.dumps(row) + "\n", encoding="utf-8")
    phases = [{"kind": "sft"}, {"kind": "sft", "data": {"path": str(folder / "phase.jsonl")}}]
    run = RunConfig.model_validate(
        {
            "name": "r",
            "model": {"name": "tiny"},
            "data": {"path": str(folder / "run.jsonl")},
            "algorithm": {"kind": "combo", "params": {"phases": phases}},
            "backend": {"kind": "mock"},
        }
    )
    return identify_run(run, RowLoader(LocalDataStore(), folder / "run"), [])["rows"]


def test_the_rows_of_every_stage_are_hashed(tmp_path: Path) -> None:
    place = "algorithm.params.phases[1].data"
    first, second = identify(tmp_path, {"b": 1}), identify(tmp_path, {"b": 2})
    assert set(first) == {"data", place}
    assert first["data"] == second["data"]
    assert first[place]["config"] == second[place]["config"]
    assert first[place]["sha256"] != second[place]["sha256"]
