from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .serving import KEY, Raw, ServerProcess


def forget_connections() -> None:
    """The package leaves the connection open by which it asked for its settings; that is no finding about us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module."""
    with ServerProcess(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[Raw]:
    client = Raw(server.url)
    yield client
    client.close()


@pytest.fixture
def service(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The `tinker` package's own client, connected to the server."""
    import tinker

    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    yield client
    client.close("success").result(timeout=60)
    del client
    forget_connections()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"
