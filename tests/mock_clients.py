"""Training clients of the mock backend for the tests of several packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec, TrainingClient
from evsys_sdk.backends.mock.backend import MockBackend


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., TrainingClient]]:
    """Mock training clients in separate folders, closed at the end of the test."""
    opened: list[tuple[MockBackend, dict[str, Any]]] = []

    def make(seed: int = 0, **params: Any) -> TrainingClient:
        backend = MockBackend(**params)
        handles = backend.prepare(model=ModelSpec("tiny", seed=seed), run_dir=tmp_path / f"client{len(opened)}")
        opened.append((backend, handles))
        return handles["training_client"]

    yield make
    for backend, handles in opened:
        backend.teardown(handles)
