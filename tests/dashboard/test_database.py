"""The database: one schema on both kinds, brought up to date, copied and restored."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytestmark = pytest.mark.dashboard

from alembic import command  # noqa: E402
from alembic.autogenerate import compare_metadata  # noqa: E402
from alembic.runtime.migration import MigrationContext  # noqa: E402

from evsys_sdk.cli.main import main  # noqa: E402
from evsys_sdk.dashboard.server.auth import make_key  # noqa: E402
from evsys_sdk.dashboard.server.storage import database, schema  # noqa: E402
from evsys_sdk.errors import ConfigError, DataError  # noqa: E402

from .databases import make_older, opened  # noqa: E402
from .serving import Api, ServerThread  # noqa: E402
from .test_api import experiment, run, step  # noqa: E402


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_migrations_make_exactly_the_schema(new_database: Callable[[str], str], kind: str) -> None:
    with opened(new_database(kind), upgrade=True) as engine:
        make_older(engine)
        with engine.execution_options(writes=True).begin() as connection:
            steps = database._config()
            steps.attributes["connection"] = connection
            command.upgrade(steps, "head")
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_of_a_newer_version_is_refused(new_database: Callable[[str], str], kind: str) -> None:
    address = new_database(kind)
    with opened(address, upgrade=True) as engine, engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DataError, match="newer version"):
        database.open_database(address)


def test_no_one_else_writes_from_the_look_at_the_version_to_the_new_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, heads = tmp_path / "d.sqlite3", []
    read = database.MigrationContext.get_current_revision

    def look(self: MigrationContext) -> str | None:
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        with contextlib.closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        heads.append(read(self))
        return heads[-1]

    monkeypatch.setattr(database.MigrationContext, "get_current_revision", look)
    database.open_database(str(path)).dispose()
    assert heads[0] is None


def test_a_copy_before_an_upgrade_that_breaks_off_does_not_pass_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.sqlite3"
    with opened(str(path)) as engine:
        make_older(engine)
    plain = sqlite3.connect

    class Killed(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            target.execute("CREATE TABLE half (a)")
            target.commit()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *args, **kwargs: plain(*args, **{"factory": Killed} | kwargs))
        with pytest.raises(KeyboardInterrupt):
            database.open_database(str(path))
    database.open_database(str(path)).dispose()
    [backup] = tmp_path.glob("*.before-upgrade")
    database._check_is_dashboard(backup)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_was_stated_in_an_older_database_is_listed_and_filtered_after_the_upgrade(
    new_database: Callable[[str], str], kind: str
) -> None:
    address = new_database(kind)
    with opened(address, upgrade=True) as engine:
        make_older(engine)
        with engine.execution_options(writes=True).begin() as connection:
            connection.exec_driver_sql("INSERT INTO project (id, name, created, version) VALUES ('p', 'p', 1, 7)")
            connection.exec_driver_sql(
                "INSERT INTO experiment (project_id, id, version, received, name, status, verdict, tags, best_score,"
                " spend) VALUES ('p', 'e1', 7, 5, 'old', 'completed', 'supported', '[\"Routing\"]', 0.5,"
                " '{\"usd\": 2.0}')"
            )
    server = ServerThread(address)
    try:
        with server.engine.execution_options(writes=True).begin() as connection:
            key = make_key(connection, "p", ["read"])[1]
        with Api(server.url, key) as api:
            [item] = api.read("/experiments", tag="routing", verdict="supported")["items"]
            assert (item["name"], item["best_score"], item["spend"]) == ("old", 0.5, {"usd": 2.0})
            assert api.read("/experiments", tag="other")["items"] == []
    finally:
        server.stop()


def test_a_postgres_database_without_an_encoding_is_used_as_utf8(request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue("postgres").create_database("ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    server = ServerThread(address)
    try:
        project = server.new_project()
        project.send(experiment(hypothesis="Größer ist besser"))
        assert project.http.read("/experiments", q="größer")["items"][0]["hypothesis"] == "Größer ist besser"
        project.close()
    finally:
        server.stop()


def test_postgres_is_not_migrated_unasked(new_database: Callable[[str], str]) -> None:
    address = new_database("postgres")
    with pytest.raises(DataError, match="evsys dashboard upgrade"):
        database.open_database(address)
    assert main(["dashboard", "upgrade", "--database", address]) == 0
    database.open_database(address).dispose()


def test_a_copy_made_while_it_is_used_can_be_restored(tmp_path: Path) -> None:
    path, copy = tmp_path / "d.sqlite3", tmp_path / "copy.sqlite3"
    server = ServerThread(str(path))
    project = server.new_project()
    project.send(experiment(), run(), *(step(at, loss=1.0) for at in range(100)))
    assert main(["dashboard", "backup", str(copy), "--database", str(path)]) == 0
    project.send(experiment("later"))
    with pytest.raises(DataError, match="a server is using it"):
        database.restore(copy, path)
    server.stop()
    assert main(["dashboard", "restore", str(copy), "--database", str(path)]) == 0
    again = ServerThread(str(path))
    with Api(again.url, project.key) as http:
        assert [item["id"] for item in http.read("/experiments")["items"]] == ["e1"]
        assert http.read("/experiments/e1/curves")["series"][0]["n"] == 100
    project.close()
    again.stop()
    assert len(list(tmp_path.glob("*.before-restore"))) == 1


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\x00 but not really"])
def test_only_an_intact_copy_is_restored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "copy").write_bytes(content)
    (tmp_path / "d.sqlite3").write_bytes(b"keep me")
    with pytest.raises(DataError):
        database.restore(tmp_path / "copy", tmp_path / "d.sqlite3")
    assert (tmp_path / "d.sqlite3").read_bytes() == b"keep me"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("mysql://x/y", "only SQLite files and PostgreSQL"),
        ("://", "not an address"),
        ("postgresql://u:secret@127.0.0.1:9/x", "cannot be used"),
    ],
)
def test_a_database_that_cannot_be_opened_is_reported_in_a_sentence(
    address: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if address.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="needs psycopg: run make test-dashboard")
    assert main(["dashboard", "key", "p", "--database", address]) == 1
    shown = capsys.readouterr().err
    assert told in shown
    assert "secret" not in shown
    assert "Traceback" not in shown


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def mounts(self: Path, *args: Any, **kwargs: Any) -> str:
        return f"server:/x {tmp_path} nfs4 rw 0 0\n" if str(self) == "/proc/mounts" else read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", mounts)
    with pytest.raises(ConfigError, match="network file system"):
        database.connect(str(tmp_path / "d.sqlite3"))


def test_keys_are_made_listed_and_revoked_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    where = ["--database", str(tmp_path / "d.sqlite3"), "--json"]
    assert main(["dashboard", "key", "p", "--scope", "read", "--name", "ann", *where]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert parsed["key"].startswith(f"evk_{parsed['id']}_")
    assert main(["dashboard", "key", "p", "--list", *where]) == 0
    assert parsed["key"] not in (listed := capsys.readouterr().out)
    assert json.loads(listed)[0]["name"] == "ann"
    assert main(["dashboard", "key", "p", "--revoke", parsed["id"], *where]) == 0
    assert main(["dashboard", "key", "p", "--revoke", "none", *where]) == 1
    assert "has no key 'none'" in capsys.readouterr().err
