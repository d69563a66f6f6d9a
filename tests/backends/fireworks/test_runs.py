"""Whole runs, and what a trainer that leaves out log-probabilities costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.backends.client import AdamParams, ModelSpec, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.experiment import Experiment

from ..tinker.recipes import RECIPES
from .conftest import Connect
from .stand_in import StandIn

pytestmark = pytest.mark.fireworks


def batch() -> list[Datum]:
    return [Datum.supervised(list(text), [1.0] * len(text)) for text in (b"the cat sat on the mat", b"a dog")]


def losses(client: TrainingClient, steps: int = 4) -> list[float]:
    values: list[float] = []
    for _ in range(steps):
        passed, stepped = client.forward_backward(batch(), "cross_entropy"), client.optim_step(AdamParams(1e-3))
        values.append(passed.result().loss)
        stepped.result()
    return values


def trained(recipe: str, backend: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """What a run logged at each step."""
    run = {"name": "r", "seed": 5, "model": {"name": "tiny"}, **RECIPES[recipe], "backend": backend}
    result = Experiment(ExperimentConfig.model_validate({"name": "same", "output_dir": str(folder), "run": run})).run()
    assert [run.status for run in result.runs] == ["completed"], result.runs[0].error
    [path] = folder.glob("**/metrics.jsonl")
    steps = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return steps


@pytest.mark.parametrize("recipe", ["sft", "dpo"])
def test_a_run_has_the_losses_it_has_on_mock(recipe: str, service: StandIn, tmp_path: Path) -> None:
    params = {"base_url": service.url, "tokenizer": "served"}
    here = trained(recipe, {"kind": "mock"}, tmp_path / "mock")
    there = trained(recipe, {"kind": "fireworks", "params": params}, tmp_path / "fireworks")
    assert len(here) > 2
    np.testing.assert_allclose([step["loss"] for step in there], [step["loss"] for step in here], rtol=1e-5)


def test_rl_samples_from_the_weights_it_trains(service: StandIn, tmp_path: Path) -> None:
    params = {"base_url": service.url, "tokenizer": "served"}
    steps = trained("rl", {"kind": "fireworks", "params": params}, tmp_path)
    ratios = [step["policy/ratio"] for step in steps if "policy/ratio" in step]
    assert len(steps) == 4
    assert ratios
    # the sampler's log-probabilities and the trainer's are those of one model, step after step
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-4)


@pytest.mark.parametrize("scores", [True, False])
def test_losses_are_right_with_and_without_log_probabilities_of_backward_passes(
    scores: bool, connect: Connect, tmp_path: Path
) -> None:
    local = MockBackend().prepare(model=ModelSpec("tiny", seed=1), run_dir=tmp_path / "mock")["training_client"]
    expected = losses(local)
    local.close()
    with StandIn(tmp_path / "service", scores_backward=scores) as service:
        client = connect(service)
        assert losses(client) == pytest.approx(expected, rel=1e-6)
        client.close()
        # the first pass finds out; afterwards a forward pass is made only where it is needed
        assert service.names().count("forward") == (1 if scores else 4)
        assert service.names().count("forward_backward") == 4


def test_a_state_continues_in_another_session_as_if_nothing_had_happened(
    connect: Connect, service: StandIn, tmp_path: Path
) -> None:
    client = connect(service)
    losses(client, 3)
    ref = client.save_state("Step_3").result()
    expected = losses(client, 3)
    again = connect(service, run_dir=tmp_path / "other", model={"load_checkpoint_path": ref})
    assert losses(again, 3) == expected
    fresh = connect(service, run_dir=tmp_path / "third", model={"init_from_checkpoint": ref})
    resumed = losses(fresh, 3)
    assert resumed[0] == expected[0]  # the same weights
    assert resumed[2] != expected[2]  # another optimizer


def test_a_checkpoint_of_another_adapter_is_refused(connect: Connect, service: StandIn, tmp_path: Path) -> None:
    from evsys_sdk.errors import BackendError

    client = connect(service)
    ref = client.save_state("a").result()
    before = service.names().count("create_model")
    with pytest.raises(BackendError, match="rank"):
        connect(service, model={"load_checkpoint_path": ref, "lora_rank": 4})
    assert service.names().count("create_model") == before


def test_a_batch_that_is_sent_in_parts_counts_as_one(connect: Connect, service: StandIn) -> None:
    client = connect(service)
    loss = client.forward(batch()).result().loss
    before = service.names().count("forward_backward")
    many = client.forward_backward(batch() * 600, "cross_entropy").result()
    assert service.names().count("forward_backward") > before + 1
    assert len(many.logprobs) == 1200
    assert many.loss == pytest.approx(600 * loss, rel=1e-5)
    assert client.optim_step(AdamParams(1e-3)).result().metrics["grad_norm"] > 0


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_a_loss_computed_there_is_the_loss_computed_here(
    loss: str, connect: Connect, service: StandIn, tmp_path: Path
) -> None:
    data = [Datum.policy(list(b"2+3="), list(b"five"), [-5.0, -4.5, -6.0, -5.5], 0.7)]
    pairs: list[tuple[float, float]] = []
    for number, native in enumerate(([], [loss])):
        client = connect(service, run_dir=tmp_path / str(number), native_losses=native)
        passed = client.forward_backward(data, loss).result()
        pairs.append((passed.loss, client.optim_step(AdamParams(0.0)).result().metrics["grad_norm"]))
    assert pairs[0] == pytest.approx(pairs[1], rel=1e-4)
