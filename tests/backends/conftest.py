from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.backends.mock.client import MockTrainingClient

type MakeClient = Callable[..., MockTrainingClient]


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[MakeClient]:
    """Build mock clients that are closed after the test."""
    backend, prepared = MockBackend(), list[dict[str, Any]]()

    def make(*, run_dir: Path | None = None, params: dict[str, Any] | None = None, **spec: Any) -> MockTrainingClient:
        chosen = MockBackend(**params) if params else backend
        model = ModelSpec(**{"name": "any/model", **spec})
        prepared.append(chosen.prepare(model=model, run_dir=run_dir or tmp_path))
        return prepared[-1]["training_client"]

    yield make
    for handles in prepared:
        backend.teardown(handles)


@pytest.fixture
def client(make_client: MakeClient) -> MockTrainingClient:
    """One mock client."""
    return make_client()
