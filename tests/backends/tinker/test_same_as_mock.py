"""One YAML, one seed: in process on `mock`, and over the wire on `tinker`. Losses, samples and weights are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.backends.client import ModelSpec, SamplingParams, TrainingClient
from evsys_sdk.backends.datum import Datum
from evsys_sdk.experiment import Experiment
from evsys_sdk.registry import get_backend

from ...server.serving import ServerProcess
from .recipes import RECIPES

pytestmark = pytest.mark.tinker


def trained(recipe: str, backend: dict[str, Any], folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a run logged at each step, and its result."""
    config = ExperimentConfig.model_validate(
        {
            "name": "same",
            "output_dir": str(folder),
            "run": {"name": "r", "seed": 5, "model": {"name": "tiny"}, **RECIPES[recipe], "backend": backend},
        }
    )
    result = Experiment(config).run()
    [run] = result.runs
    assert run.status == "completed", run.error
    [path] = folder.glob("**/metrics.jsonl")
    steps = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return steps, {"artifacts": run.artifacts, "metrics": run.metrics}


def timeless(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without times, which differ."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: kept(one) for key, one in value.items() if not key.startswith("time") and key != "ts"}
        return value

    return [kept(step) for step in steps]


def opened(backend: str, params: dict[str, Any], ref: str, run_dir: Path) -> TrainingClient:
    """A client with the weights of a checkpoint."""
    spec = ModelSpec("tiny", load_checkpoint_path=ref, seed=5)
    return get_backend(backend)(**params).prepare(model=spec, run_dir=run_dir)["training_client"]


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_a_run_is_the_same_over_the_wire(recipe: str, server: ServerProcess, tmp_path: Path) -> None:
    params = {"base_url": server.url}
    steps, result = trained(recipe, {"kind": "mock"}, tmp_path / "mock")
    remote_steps, remote_result = trained(recipe, {"kind": "tinker", "params": params}, tmp_path / "tinker")
    assert len(steps) > 2
    assert timeless(remote_steps) == timeless(steps)
    finals = [result["artifacts"]["final_checkpoint"], remote_result["artifacts"]["final_checkpoint"]]
    here = opened("mock", {}, finals[0], tmp_path / "a")
    there = opened("tinker", params, finals[1], tmp_path / "b")
    try:
        same_weights(here, there)
        same_samples(here, there)
    finally:
        here.close()
        there.close()


def same_weights(here: TrainingClient, there: TrainingClient) -> None:
    """Every token of the vocabulary after some contexts: equal logits mean equal weights."""
    for text in ("route this: play a song", "2+3="):
        tokens = here.tokenizer.encode(text)
        vocabulary = np.tile(np.arange(here.capabilities.vocab_size), (len(tokens), 1))
        datum = Datum(np.array(tokens), vocabulary, np.ones(vocabulary.shape, np.float32))
        first, other = (client.forward([datum]).result().logprobs[0] for client in (here, there))
        assert np.array_equal(first, other)


def same_samples(here: TrainingClient, there: TrainingClient) -> None:
    prompt = here.tokenizer.encode("2+3=")
    params = SamplingParams(max_tokens=12, seed=11, stop=[])
    first, other = (client.sampler().result().sample(prompt, 3, params).result() for client in (here, there))
    assert first == other
