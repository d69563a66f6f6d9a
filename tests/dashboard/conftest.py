from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .databases import PostgresServer, find_postgres
from .stand_in import KEY, StandIn

NEEDED = ("fastapi", "sqlalchemy", "alembic", "msgspec", "uvicorn")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the packages of the server its tests are skipped; `make test-dashboard` has all of them."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    for item in items:
        if item.get_closest_marker("dashboard") is None:
            continue
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs {' and '.join(missing)}: run make test-dashboard"))
        elif ("postgres" in item.name or item.get_closest_marker("slow")) and find_spec("psycopg") is None:
            item.add_marker(pytest.mark.skip(reason="takes long or needs psycopg: run make test-dashboard"))


@pytest.fixture(autouse=True)
def _nobody_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning about a server that does not answer is enough for a process, but not for all of its tests."""
    monkeypatch.setattr("evsys_sdk.dashboard.client.sender._warned_about", set())


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as server:
        yield server


@pytest.fixture
def at_stand_in(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    """The environment of somebody who reports to the stand-in."""
    report_to(monkeypatch, stand_in.url, tmp_path)
    return stand_in


def report_to(
    monkeypatch: pytest.MonkeyPatch, url: str, folder: Path, *, key: str = KEY, project: str = "demo"
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EVSYS_API_URL", url)
    monkeypatch.setenv("EVSYS_API_KEY", key)
    monkeypatch.setenv("EVSYS_PROJECT_ID", project)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for the session: the one that EVSYS_TEST_POSTGRES names, else one of our own."""
    with find_postgres() as server:
        yield server


@pytest.fixture
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """The address of an empty database of a kind."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return str(tmp_path / f"{secrets.token_hex(4)}.sqlite3")
        return request.getfixturevalue("postgres").create_database()

    return make


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    running: dict[str, Any] = {}
    yield running
    for server in running.values():
        server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def dashboard(request: pytest.FixtureRequest, servers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A separate project on a running server, once with each database."""
    from .serving import ServerThread

    kind: str = request.param
    if kind not in servers:
        folder = tmp_path_factory.mktemp("dashboard")
        address = (
            str(folder / "d.sqlite3") if kind == "sqlite" else request.getfixturevalue("postgres").create_database()
        )
        servers[kind] = ServerThread(address)
    with contextlib.closing(servers[kind].new_project()) as project:
        yield project
