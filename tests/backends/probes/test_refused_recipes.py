"""Recipes that a server would corrupt without an error are refused before the first step, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, register_backend
from evsys_sdk.experiment import Experiment

from ..tinker.recipes import CHATS, PAIRS, TASKS, rows
from . import wrong

RL: dict[str, Any] = {"max_steps": 2, "batch_size": 2, "group_size": 2, "sampling": {"max_tokens": 4}}
SDFT: dict[str, Any] = {"max_steps": 2, "batch_size": 2, "top_k": 4, "sampling": {"max_tokens": 4}}
AVERAGED = {"summed_losses": False}
LIVE = {"snapshot_samplers": False}


def outcome(
    kind: str, params: dict[str, Any], data: list[dict[str, Any]], declared: dict[str, bool], folder: Path
) -> tuple[str, str]:
    clients = {True: wrong.Normalises, False: wrong.LiveSamplers}
    register_backend("wrong")(
        type("Wrong", (wrong.WrongBackend,), {"client": clients["summed_losses" in declared], "declared": declared})
    )
    config = {
        "name": "refused",
        "output_dir": str(folder),
        "run": {
            "name": "r",
            "data": rows(data),
            "model": {"name": "tiny"},
            "algorithm": {"kind": kind, "params": params},
            "backend": {"kind": "wrong"},
        },
    }
    [run] = Experiment(ExperimentConfig.model_validate(config)).run().runs
    return run.status, run.error or ""


@pytest.mark.parametrize(
    ("kind", "params", "data", "declared", "said"),
    [
        ("dpo", {"max_steps": 2}, PAIRS, AVERAGED, "averages losses"),
        ("rl", RL, TASKS, AVERAGED, "averages losses"),
        ("sdft", {**SDFT, "divergence": "reverse"}, CHATS, AVERAGED, "averages losses"),
        ("sdft", {**SDFT, "divergence": "sampled"}, CHATS, AVERAGED, "averages losses"),
        ("rl", {**RL, "max_staleness": 1}, TASKS, LIVE, "follow the live weights"),
        ("rl", {**RL, "kl_coefficient": 0.1}, TASKS, LIVE, "follow the live weights"),
        ("sdft", SDFT, CHATS, LIVE, "follow the live weights"),
        ("opd", {**SDFT, "teacher": "somewhere"}, CHATS, LIVE, "follow the live weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_recipe_that_would_be_corrupted_is_refused(
    kind: str, params: dict[str, Any], data: list[Any], declared: dict[str, bool], said: str, tmp_path: Path
) -> None:
    status, error = outcome(kind, params, data, declared, tmp_path)
    assert status == "failed"
    assert said in error
    assert "evsys doctor" in error
    assert not list(tmp_path.glob("**/metrics.jsonl")), "a step was taken"


@pytest.mark.parametrize(
    ("kind", "params", "data", "declared"),
    [
        ("sft", {"max_steps": 2}, CHATS, AVERAGED),
        ("sdft", {**SDFT, "divergence": "forward"}, CHATS, AVERAGED),
        ("sft", {"max_steps": 2}, CHATS, LIVE),
        ("rl", RL, TASKS, LIVE),
        ("dpo", {"max_steps": 2}, PAIRS, LIVE),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_recipe_that_is_not_corrupted_runs(
    kind: str, params: dict[str, Any], data: list[Any], declared: dict[str, bool], tmp_path: Path
) -> None:
    assert outcome(kind, params, data, declared, tmp_path) == ("completed", "")
