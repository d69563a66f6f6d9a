"""Recipes on the mock backend: set up alone, or trained as a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig, RunResult
from evsys_sdk.backends.client import ModelSpec, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.experiment import Experiment
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.training.checkpoints import Checkpoint, CheckpointLog

WORDS = "amber birch cedar dune ember frost grove heron iris jade kelp lark".split()


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


def chat(user: str, assistant: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]}


@pytest.fixture
def chats() -> list[dict[str, Any]]:
    return [chat(f"shout {word}", word.upper()) for word in WORDS]


@pytest.fixture
def pairs() -> list[dict[str, Any]]:
    return [{"prompt": f"shout {word}", "chosen": word.upper(), "rejected": word} for word in WORDS]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trained]:
    """Train one run with the given algorithm on the given rows; each call is an experiment of its own."""
    monkeypatch.chdir(tmp_path)
    count = 0

    def run(kind: str, rows: Sequence[dict[str, Any]] | None = None, *, seed: int = 0, **more: Any) -> Trained:
        nonlocal count
        count += 1
        params = more.pop("params", {})
        data = {} if rows is None else {"data": {"source_kind": "in_memory", "rows": list(rows)}}
        config = {
            "name": f"e{count}",
            "output_dir": str(tmp_path / "outputs"),
            "callbacks": more.pop("callbacks", []),
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
        result = Experiment(ExperimentConfig.model_validate(config)).run()
        return Trained(result.runs[0], result.path / "r")

    return run


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TrainingClient]:
    backend = MockBackend(context_length=256)
    handles = backend.prepare(model=ModelSpec("tiny"), run_dir=tmp_path / "client")
    yield handles["training_client"]
    backend.teardown(handles)


@pytest.fixture
def set_up(client: TrainingClient, tmp_path: Path) -> Callable[..., Any]:
    """Bind a recipe to the client and some rows, and run its `setup`."""

    async def prepare(algorithm: Any, rows: Sequence[dict[str, Any]], *, seed: int = 0) -> Any:
        renderer = get_renderer(client.tokenizer)
        algorithm.bind(client=client, renderer=renderer, rows=rows, seed=seed, run_dir=tmp_path / "run", services={})
        await algorithm.setup()
        return algorithm

    return prepare
