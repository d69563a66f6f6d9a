"""A server of our own for every module, and backends that connect to it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec, TrainingClient

from ...server.serving import ServerProcess

type Connect = Callable[..., TrainingClient]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module."""
    with ServerProcess(tmp_path_factory.mktemp("state"), "--max-models", "64") as running:
        yield running


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the person who runs the tests; connections that the package leaves open are closed."""
    for name in ("TINKER_BASE_URL", "TINKER_TELEMETRY", "TINKER_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    yield
    with warnings.catch_warnings():  # the package leaves connections open
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Make clients that are closed after the test."""
    from evsys_sdk.backends.tinker.backend import TinkerBackend

    prepared: list[tuple[TinkerBackend, dict[str, Any]]] = []

    def make(url: str, *, run_dir: Path | None = None, seed: int = 1, **params: Any) -> TrainingClient:
        backend = TinkerBackend(base_url=url, **params)
        handles = backend.prepare(model=ModelSpec("tiny", seed=seed), run_dir=run_dir or tmp_path / "run")
        prepared.append((backend, handles))
        return handles["training_client"]

    yield make
    for backend, handles in prepared:
        backend.teardown(handles)
