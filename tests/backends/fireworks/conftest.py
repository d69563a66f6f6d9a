"""A stand-in for the service for every module, and backends that connect to it."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.backends.client import ModelSpec, TrainingClient

from .stand_in import KEY, StandIn

type Connect = Callable[..., TrainingClient]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the package these tests are skipped; what it deprecates in itself is its own affair."""
    missing = find_spec("fireworks") is None
    for item in items:
        if item.get_closest_marker("fireworks") is None:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason="needs fireworks-ai: run make test-fireworks"))
        for category in ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """One stand-in for the tests of a module."""
    with StandIn(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the person who runs the tests; connections that the package leaves open are closed."""
    for name in ("TINKER_BASE_URL", "TINKER_TELEMETRY", "FIREWORKS_BASE_URL", "FIREWORKS_CREDENTIAL_CMD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    yield
    with warnings.catch_warnings():  # the package leaves connections open
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Make clients that are closed after the test."""
    from evsys_sdk.backends.fireworks.backend import FireworksBackend

    prepared: list[tuple[FireworksBackend, dict[str, Any]]] = []

    def make(
        service: StandIn, *, run_dir: Path | None = None, model: dict[str, Any] | None = None, **params: Any
    ) -> Any:
        backend = FireworksBackend(**{"base_url": service.url, "tokenizer": "served", **params})
        spec = ModelSpec(**{"name": "tiny", "seed": 1, **(model or {})})
        handles = backend.prepare(model=spec, run_dir=run_dir or tmp_path / "run")
        prepared.append((backend, handles))
        return handles["training_client"]

    yield make
    for backend, handles in prepared:
        backend.teardown(handles)
