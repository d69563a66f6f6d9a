"""What the identity of an arm covers."""

from __future__ import annotations

from typing import Any

from evsys_sdk.config import DataConfig, RunConfig
from evsys_sdk.experiment.audit.identity import identify_run


def identify(leaked: list[dict[str, Any]]) -> dict[str, Any]:
    phases = [{"kind": "sft"}, {"kind": "sft", "data": {"path": "phase.jsonl"}}]
    run = RunConfig.model_validate(
        {
            "name": "r",
            "model": {"name": "tiny"},
            "data": {"path": "run.jsonl"},
            "algorithm": {"kind": "combo", "params": {"phases": phases}},
            "backend": {"kind": "mock"},
        }
    )

    def load(data: DataConfig) -> list[dict[str, Any]]:
        return leaked if data.path == "phase.jsonl" else [{"a": 1}]

    return identify_run(run, load, [])["rows"]


def test_the_rows_of_every_stage_are_hashed() -> None:
    place = "algorithm.params.phases[1].data"
    first, second = identify([{"b": 1}]), identify([{"b": 2}])
    assert set(first) == {"data", place}
    assert first["data"] == second["data"]
    assert first[place]["config"] == second[place]["config"]
    assert first[place]["sha256"] != second[place]["sha256"]
