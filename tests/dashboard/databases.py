"""A PostgreSQL for tests, without any service: an installed one is started unprivileged in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_CHOICES = "Set EVSYS_TEST_POSTGRES to the address of one, or install PostgreSQL (initdb and postgres)."


class PostgresServer:
    """Makes databases on one server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def create_database(self, options: str = "ENCODING 'UTF8' TEMPLATE template0") -> str:
        """The address of a new, empty database."""
        import psycopg

        name = f"evsys_{secrets.token_hex(6)}"
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" {options}'.encode())
        base, question, query = self.address.partition("?")
        return f"{base.rpartition('/')[0]}/{name}{question}{query}"


@contextlib.contextmanager
def opened(address: str, **options: Any) -> Iterator[Any]:
    """The engine of a database, whose connections are closed even if the test fails: a warning would fail the next."""
    from evsys_sdk.dashboard.server.storage.database import open_database

    engine = open_database(address, **options)
    try:
        yield engine
    finally:
        engine.dispose()


@contextlib.contextmanager
def find_postgres() -> Iterator[PostgresServer]:
    """The server that the environment names, or one that lives as long as the block."""
    if response := os.environ.get("EVSYS_TEST_POSTGRES"):
        yield PostgresServer(response)
        return
    programs = _programs()
    if programs is None:
        pytest.fail(f"there is no PostgreSQL to test with. {_CHOICES}")
    folder = Path(tempfile.mkdtemp(prefix="evsys-pg-", dir="/tmp"))
    try:
        process = _start(programs, folder)
        try:
            yield PostgresServer(f"postgresql://postgres@/postgres?host={folder}")
        finally:
            process.send_signal(signal.SIGQUIT)  # nothing in it is worth a clean end
            process.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    places = [Path(program).resolve().parent for name in ("initdb",) if (program := shutil.which(name))]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _start(programs: Path, folder: Path) -> Any:
    """PostgreSQL refuses to run as root, so it runs as nobody there."""
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if as_nobody:
        os.chown(folder, 65534, 65534)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C"}
    data = folder / "data"
    result = subprocess.run(
        [
            *as_nobody,
            programs / "initdb",
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-D",
            data,
        ],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    settings = {"listen_addresses": "", "unix_socket_directories": folder, "fsync": "off", "full_page_writes": "off"}
    settings |= {"synchronous_commit": "off", "max_connections": "200"}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [*as_nobody, programs / "postgres", "-D", data, *options],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "ready to accept connections" in line:
            break
    else:
        pytest.fail(f"PostgreSQL did not start and ended with {process.wait()}")
    _drain(process.stderr)
    return process


def _drain(stream: Any) -> None:
    """Read what it says for as long as it lives, so that it never waits for us."""
    import threading

    def read() -> None:
        with contextlib.suppress(ValueError, OSError), stream:
            for _ in stream:
                pass

    threading.Thread(target=read, daemon=True).start()


def make_older(engine: Any) -> None:
    """Give a database of today the schema of the oldest that is migrated."""
    import sqlalchemy as sa
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    with engine.execution_options(writes=True).begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        op.drop_table("experiment_detail")
        op.drop_table("experiment_view")
        texts = "name description hypothesis status verdict sentence metric mode best_run parent_id invalidated"
        texts += " conclusion_text recipe_kind config_sha256 words"
        kinds: dict[str, tuple[Any, str | None]] = dict.fromkeys(texts.split(), (sa.Text(), ""))
        kinds |= dict.fromkeys(["best_score", "best_low", "best_high", "started", "ended", "usd"], (sa.Float(53), None))
        kinds |= dict.fromkeys(["n_runs", "n_arms", "n_done", "n_failures"], (sa.Integer(), None))
        kinds |= {"n_notes": (sa.Integer(), "0")}
        kinds |= dict.fromkeys(["tags", "models", "algorithms", "backends", "varied", "flags"], (sa.Text(), "[]"))
        kinds |= dict.fromkeys(["spend", "config", "conclusion", "commands"], (sa.Text(), "{}"))
        for name, (kind, default) in kinds.items():
            op.add_column("experiment", sa.Column(name, kind, nullable=default is None, server_default=default))
        with op.batch_alter_table("experiment") as table:
            table.drop_column("heard")
            table.drop_column("told")
        op.create_index("ix_experiment_project_id_parent_id", "experiment", ["project_id", "parent_id"])
        op.add_column("quarantine", sa.Column("waits_for", sa.String(200)))
        op.create_index("ix_quarantine_project_id_waits_for", "quarantine", ["project_id", "waits_for"])
        for name in ("low", "high"):
            op.add_column("metric_latest", sa.Column(name, sa.Float(53)))
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0003'")
