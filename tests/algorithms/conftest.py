from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.algorithms.base import BaseAlgorithm
from evsys_sdk.backends.client import AdamParams, ModelSpec, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.eval.verifier import verify_with
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.training.callback import RunControl


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., TrainingClient]]:
    """Mock training clients in folders of their own, closed at the end of the test."""
    opened: list[tuple[MockBackend, dict[str, Any]]] = []

    def make(seed: int = 0, **params: Any) -> TrainingClient:
        backend = MockBackend(**params)
        handles = backend.prepare(model=ModelSpec("tiny", seed=seed), run_dir=tmp_path / f"client{len(opened)}")
        opened.append((backend, handles))
        return handles["training_client"]

    yield make
    for backend, handles in opened:
        backend.teardown(handles)


type SetUp = Callable[..., Awaitable[BaseAlgorithm]]


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[SetUp]:
    """A recipe bound to a client and some rows, as the loop would do it; closed at the end of the test."""
    opened: list[BaseAlgorithm] = []

    async def bound[A: BaseAlgorithm](
        algorithm: A, client: TrainingClient, rows: Sequence[dict[str, Any]], **services: Any
    ) -> A:
        offered: Mapping[str, Any] = {"verify": verify_with(), "control": RunControl(), **services}
        algorithm.bind(
            client=client,
            renderer=get_renderer(client.tokenizer),
            rows=rows,
            seed=0,
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
