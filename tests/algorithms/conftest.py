"""Recipes on the mock backend: set up alone, or trained as a run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, RunResult
from evsys_sdk.algorithms.base import BaseAlgorithm
from evsys_sdk.backends.client import AdamParams, TrainingClient
from evsys_sdk.eval.verifier import verify_rollout
from evsys_sdk.experiment import Experiment
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.record.run_files.checkpoints import Checkpoint, CheckpointLog
from evsys_sdk.training.callback import Observers, RunControl
from evsys_sdk.training.services import RunServices

from ..mock_clients import make_client

__all__ = ["make_client"]

WORDS = ["amber", "birch", "cedar", "dune", "ember", "frost", "grove", "heron", "iris", "jade", "kelp", "lark"]


type SetUp = Callable[..., Awaitable[BaseAlgorithm]]


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[SetUp]:
    """A recipe bound to a client and some rows, as the loop would do it; closed at the end of the test."""
    opened: list[BaseAlgorithm] = []

    async def bound[A: BaseAlgorithm](
        algorithm: A, client: TrainingClient, rows: Sequence[dict[str, Any]], *, seed: int = 0, **services: Any
    ) -> A:
        options: dict[str, Any] = {"verify": verify_rollout, "control": RunControl(), "seed": seed, **services}
        offered = RunServices(observers=Observers([]), load_rows=lambda _: [], client=client, **options)
        algorithm.bind(
            client=client,
            renderer=get_renderer(client.tokenizer),
            rows=rows,
            seed=seed,
            run_dir=tmp_path / "run",
            services=offered,
        )
        opened.append(algorithm)
        await algorithm.setup()
        return algorithm

    yield bound
    for algorithm in opened:
        algorithm.close()


@pytest.fixture
def take_step() -> Callable[..., Awaitable[dict[str, float]]]:
    """Build a batch and train on it; returns the metrics of both."""

    async def step(algorithm: BaseAlgorithm, index: int, learning_rate: float = 5e-4) -> dict[str, float]:
        batch = await algorithm.build_batch(index)
        if not batch.data:
            return batch.metrics
        if isinstance(batch.loss_fn, str):
            output = await algorithm.client.forward_backward(batch.data, batch.loss_fn, batch.loss_fn_config)
        else:
            output = await algorithm.client.forward_backward_custom(batch.data, batch.loss_fn)
        await algorithm.client.optim_step(AdamParams(learning_rate=learning_rate, grad_clip_norm=1.0))
        return {**batch.metrics, **output.metrics, "loss": output.loss}

    return step


@dataclass(frozen=True)
class Trained:
    """What a run left behind."""

    result: RunResult
    run_dir: Path

    @property
    def steps(self) -> list[dict[str, Any]]:
        lines = (self.run_dir / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [line for line in map(json.loads, lines) if "learning_rate" in line]

    def curve(self, metric: str) -> list[float]:
        return [line[metric] for line in self.steps]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return CheckpointLog.in_dir(self.run_dir).read()


@pytest.fixture
def chats() -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"shout {word}"}, {"role": "assistant", "content": word.upper()}]}
        for word in WORDS
    ]


@pytest.fixture
def pairs() -> list[dict[str, Any]]:
    return [{"prompt": f"shout {word}", "chosen": word.upper(), "rejected": word} for word in WORDS]


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Trained]:
    """Train one run with the given algorithm on the given rows; each call is a separate experiment."""
    count = 0

    def run(kind: str, rows: Sequence[dict[str, Any]] | None = None, *, seed: int = 0, **more: Any) -> Trained:
        nonlocal count
        count += 1
        params, checked = more.pop("params", {}), more.pop("checked", False)
        data = {} if rows is None else {"data": {"source_kind": "in_memory", "rows": list(rows)}}
        config = {
            "name": f"e{count}",
            "output_dir": str(tmp_path / "outputs"),
            "callbacks": more.pop("callbacks", []),
            # In this process, whatever other tests have registered here: what a test patches must be what is run.
            "launcher": {"kind": "local", "params": {"arms_in": "threads"}},
            "run": {
                "name": "r",
                "model": {"name": "tiny", **more.pop("model", {})},
                "algorithm": {"kind": kind, "params": params},
                "backend": more.pop("backend", {"kind": "mock"}),
                "seed": seed,
                **data,
                **more,
            },
        }
        result = Experiment(ExperimentConfig.model_validate(config), checked=checked).run()
        return Trained(result.runs[0], result.path / "r")

    return run


@pytest.fixture
def client(make_client: Callable[..., TrainingClient]) -> TrainingClient:
    """A model with little room, so that rows are soon too long."""
    return make_client(context_length=256)


@pytest.fixture
def prepared(client: TrainingClient, set_up: SetUp) -> SetUp:
    """A recipe bound to that client and some rows."""

    async def prepare(algorithm: Any, rows: Sequence[dict[str, Any]], *, seed: int = 0) -> Any:
        return await set_up(algorithm, client, rows, seed=seed)

    return prepare
