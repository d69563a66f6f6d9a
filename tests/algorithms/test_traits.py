"""What a recipe says about itself before it trains, and what follows from it: steps, backend, best checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evsys_sdk import (
    AlgorithmTraits,
    ExperimentConfig,
    RunContext,
    RunResult,
    get_algorithm,
    register_algorithm,
    register_verifier,
)
from evsys_sdk.algorithms.combo import Combo
from evsys_sdk.algorithms.rl import RL
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.data.stores.in_memory import InMemoryDataStore
from evsys_sdk.observers.log_stores.jsonl import JsonlLogStore
from evsys_sdk.protocols import traits_of
from evsys_sdk.record.run_files.checkpoints import CheckpointLog
from evsys_sdk.registry import REGISTRIES

type Train = Callable[..., Any]


def task(number: int, verifier: str = "exact_match") -> dict[str, Any]:
    payload = {"kind": "in_process", "fn_name": verifier, "expected": "b"}
    return {"task_id": f"t{number}", "instruction": f"{number}: a or b?", "verifier": payload}


TASKS = [task(number) for number in range(2)]
SHORT: dict[str, Any] = {"batch_size": 2, "group_size": 4, "max_steps": 3, "sampling": {"max_tokens": 4}}


def test_an_algorithm_that_declares_nothing_has_defaults_and_what_its_class_and_params_say() -> None:
    class Plain:
        name: ClassVar[str] = "plain"

        def train(self, ctx: RunContext) -> RunResult:
            raise NotImplementedError

    class Pinned(Plain):
        pinned_backend = "mock"

        class cfg:
            lora_rank = 4
            max_steps = 9

    assert traits_of(Plain()) == AlgorithmTraits()
    assert traits_of(Pinned()) == AlgorithmTraits(pinned_backend="mock", lora_rank=4, max_steps=9)


@pytest.mark.parametrize(
    ("kind", "metric", "mode"),
    [
        ("sft", "loss", "min"),
        ("dpo", "loss", "min"),
        ("mock_sft", "loss", "min"),
        ("rl", "reward/mean", "max"),
        ("mock_rl", "reward/mean", "max"),
        ("sdft", "teacher/reverse_kl", "min"),
        ("opd", "teacher/reverse_kl", "min"),
    ],
)
def test_each_recipe_names_its_own_measure(kind: str, metric: str, mode: str) -> None:
    recipe = get_algorithm(kind)(**({"teacher": "somewhere"} if kind == "opd" else {}))
    traits = traits_of(recipe)
    assert (traits.selection_metric, traits.selection_mode) == (metric, mode)


def test_steps_follow_from_the_rows_and_from_updates() -> None:
    rows: list[dict[str, Any]] = [{}] * 10
    planned = [traits_of(one).planned_steps for one in (SFT(batch_size=4), RL(batch_size=4, updates_per_batch=2))]
    assert [plan(rows) if plan else None for plan in planned] == [3, 6]


def test_stages_as_a_whole() -> None:
    phases = [{"kind": "sft", "params": {"max_steps": 2}}, {"kind": "rl", "params": {**SHORT, "updates_per_batch": 2}}]
    traits = traits_of(Combo(phases=phases, lora_rank=8))
    assert (traits.max_steps, traits.lora_rank) == (5, 8)
    assert (traits.selection_metric, len(traits.stages)) == ("reward/mean", 2)
    assert traits.rollouts is not None
    assert traits.rollouts.max_tokens == 4
    assert traits_of(Combo(phases=[{"kind": "sft"}, phases[1]])).max_steps is None


@pytest.fixture
def uneven() -> Iterator[list[dict[str, Any]]]:
    """Tasks whose rewards differ within every group, and from step to step."""
    rewards = iter([0.0, 1.0, 0.0, 1.0, 1.0, 0.9, 0.9, 1.0, 0.0, 0.1, 0.1, 0.0])
    with REGISTRIES["verifier"].isolated():

        @register_verifier("by_turn")
        def by_turn(completion: str, expected: Any, **_: Any) -> float:  # pyright: ignore[reportUnusedFunction]
            return next(rewards)

        yield [task(0, "by_turn"), task(1, "by_turn")]


EACH_STEP = {**SHORT, "group_size": 2, "save_every": 1, "concurrency": 1}


def test_the_best_checkpoint_of_rl_is_the_one_with_the_highest_reward(
    train: Train, uneven: list[dict[str, Any]]
) -> None:
    trained = train("rl", uneven, params=EACH_STEP, checked=True)  # the pre-flight would draw rewards
    reward = {found.state: found.metrics["reward/mean"] for found in CheckpointLog.in_dir(trained.run_dir).read()}
    assert list(reward.values()) == pytest.approx([0.5, 0.95, 0.05])
    assert reward[trained.result.artifacts["best_checkpoint"]] == pytest.approx(0.95)
    notes = trained.result.notes
    assert (notes.selection_metric, notes.selection_mode) == ("reward/mean", "max")


def test_the_config_may_choose_by_another_metric_than_the_recipe(train: Train, uneven: list[dict[str, Any]]) -> None:
    notes = train("rl", uneven, params={**EACH_STEP, "selection_metric": "loss"}, checked=True).result.notes
    assert (notes.selection_metric, notes.selection_mode) == ("loss", "min")


def test_the_line_of_a_failing_agent_is_named(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_agent.py").write_text(
        "class Broken:\n    async def run(self, task, policy, environment):\n        return {}['key']\n", "utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trained = train("rl", TASKS, params={**SHORT, "agent_import_path": "broken_agent:Broken"})
    assert trained.result.status == "failed"
    assert "the agent failed: KeyError: 'key' (at broken_agent.py:3)" in trained.result.error


def test_a_recipe_can_be_trained_by_hand_from_the_documented_fields(
    tmp_path: Path, chats: list[dict[str, Any]]
) -> None:
    backend, log_store = MockBackend(), JsonlLogStore(log_dir=str(tmp_path / "logs"))
    run = {"name": "r", "model": {"name": "tiny"}, "algorithm": {"kind": "sft"}, "seed": 3}
    config = ExperimentConfig.model_validate({"name": "e", "run": {**run, "data": {"path": "rows.jsonl"}}})
    handles = backend.prepare(model=ModelSpec("tiny", seed=3), run_dir=tmp_path)
    try:
        extras = {"train_rows": chats, "backend_handles": handles}
        ctx = RunContext("r", tmp_path, config, InMemoryDataStore(), log_store, backend, extras)
        result = SFT(max_steps=3, batch_size=4).train(ctx)
    finally:
        backend.teardown(handles)
        log_store.close()
    assert (result.status, result.metrics["steps"]) == ("completed", 3.0)
    logged = (tmp_path / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert len(logged) == 3


def test_notes_that_an_algorithm_puts_into_its_extras_count(train: Train, chats: list[dict[str, Any]]) -> None:
    with REGISTRIES["algorithm"].isolated():

        @register_algorithm("modest")
        class Modest:  # pyright: ignore[reportUnusedClass]
            def train(self, ctx: RunContext) -> RunResult:
                return RunResult(ctx.run_id, "completed", {"x": 1.0}, extras={"unscored": "no time", "mine": 1})

        result = train("modest", chats).result
    assert (result.notes.unscored, result.extras) == ("no time", {"mine": 1})
