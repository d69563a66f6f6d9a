"""One SkyRL server for all tests here. Without its environment they are skipped."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec, TrainingClient

from .running import SkyRLServer, skyrl_python, tiny_model

type Connect = Callable[..., TrainingClient]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the tinker package deprecates or leaves open in itself is its own affair."""
    ready = skyrl_python() is not None and find_spec("tinker") is not None
    for item in items:
        if item.get_closest_marker("skyrl") is None:
            continue
        if not ready:
            item.add_marker(pytest.mark.skip(reason="needs SkyRL and tinker: run make test-skyrl"))
        for category in ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRLServer]:
    python = skyrl_python()
    assert python is not None
    with SkyRLServer(python, tiny_model(python), tmp_path_factory.mktemp("skyrl")) as running:
        yield running


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the person who runs the tests; connections that the package leaves open are closed."""
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    yield
    with warnings.catch_warnings():  # the package leaves connections open
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def connect(server: SkyRLServer, tmp_path: Path) -> Iterator[Connect]:
    """Make clients through the backend `skyrl` that are closed after the test."""
    from evsys_sdk.backends.tinker.backend import SkyRLBackend

    prepared: list[tuple[SkyRLBackend, dict[str, Any]]] = []

    def make(*, seed: int = 1, **model: Any) -> TrainingClient:
        backend = SkyRLBackend(base_url=server.url)
        spec = ModelSpec(str(server.model), lora_rank=8, seed=seed, **model)
        prepared.append((backend, backend.prepare(model=spec, run_dir=tmp_path / "run")))
        return prepared[-1][1]["training_client"]

    yield make
    for backend, handles in prepared:
        backend.teardown(handles)
