"""Which recipes a run is, and which rows each of them trains on."""

from __future__ import annotations

from typing import Any

import pytest

from evsys_sdk.algorithms.combo import Combo
from evsys_sdk.config import AlgorithmConfig, DataConfig, RunConfig
from evsys_sdk.config.base import Strict
from evsys_sdk.registry import REGISTRIES, register_algorithm

OWN = {"path": "own.jsonl"}


def make(algorithm: dict[str, Any], **more: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"name": "r", "model": {"name": "tiny"}, "data": {"path": "run.jsonl"}, "algorithm": algorithm, **more}
    )


def describe(run: RunConfig) -> list[tuple[Any, ...]]:
    return [
        (stage.kind, dict(stage.params), stage.data and stage.data.path, stage.path, stage.data_path)
        for stage in run.stages()
    ]


@pytest.mark.parametrize("kind", ["sft", "mock_rl", "local_sft", "local_rl", "not_registered"])
def test_a_plain_recipe_is_one_stage(kind: str) -> None:
    assert describe(make({"kind": kind, "params": {"a": 1}})) == [(kind, {"a": 1}, "run.jsonl", "algorithm", "data")]


PHASES = [{"kind": "sft", "params": {"max_steps": 1}}, {"kind": "dpo", "data": OWN}]


def test_each_phase_of_a_combo_has_its_own_rows_or_those_of_the_run() -> None:
    place = "algorithm.params.phases"
    assert describe(make({"kind": "combo", "params": {"phases": PHASES}})) == [
        ("sft", {"max_steps": 1}, "run.jsonl", f"{place}[0]", "data"),
        ("dpo", {}, "own.jsonl", f"{place}[1]", f"{place}[1].data"),
    ]


def test_each_stage_of_a_continual_run_has_the_params_of_the_algorithm_under_its_own() -> None:
    stages = [{"name": "a", "data": OWN, "params": {"max_steps": 2}}, {"name": "b", "data": OWN, "eval_data": OWN}]
    run = make({"kind": "sft", "params": {"max_steps": 1, "seed": 0}}, data=None, continual={"stages": stages})
    assert describe(run) == [
        ("sft", {"max_steps": 2, "seed": 0}, "own.jsonl", "continual.stages[0]", "continual.stages[0].data"),
        ("sft", {"max_steps": 1, "seed": 0}, "own.jsonl", "algorithm", "continual.stages[1].data"),
    ]
    assert [stage.eval_data is None for stage in run.stages()] == [True, False]


class Part(AlgorithmConfig):
    data: DataConfig | None = None


class Chain:
    """A recipe with parts under another name."""

    class Config(Strict):
        parts: list[Part]


def test_recipes_of_third_parties_are_found_by_their_declared_params() -> None:
    with REGISTRIES["algorithm"].isolated():
        register_algorithm("chain")(Chain)
        register_algorithm("my_combo")(type("MyCombo", (Combo,), {"name": "my_combo"}))
        chain = make({"kind": "chain", "params": {"parts": PHASES}})
        assert [(stage.kind, stage.path) for stage in chain.stages()] == [
            ("sft", "algorithm.params.parts[0]"),
            ("dpo", "algorithm.params.parts[1]"),
        ]
        assert [stage.kind for stage in make({"kind": "my_combo", "params": {"phases": PHASES}}).stages()] == [
            "sft",
            "dpo",
        ]


def test_changed_params_reach_every_stage() -> None:
    combo = make({"kind": "combo", "params": {"phases": PHASES}}).with_params(lambda kind: {f"{kind}_steps": 3})
    assert [dict(stage.params) for stage in combo.stages()] == [{"max_steps": 1, "sft_steps": 3}, {"dpo_steps": 3}]
    assert [stage.data and stage.data.path for stage in combo.stages()] == ["run.jsonl", "own.jsonl"]
    stages = [{"name": "a", "data": OWN, "params": {"max_steps": 2}}, {"name": "b", "data": OWN}]
    run = make({"kind": "sft"}, data=None, continual={"stages": stages}).with_params(lambda _: {"max_steps": 9})
    assert [stage.params["max_steps"] for stage in run.stages()] == [9, 9]
