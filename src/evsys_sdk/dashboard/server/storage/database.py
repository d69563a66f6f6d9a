"""Open, migrate and back up the database: a SQLite file, or PostgreSQL by URL.

A SQLite file is copied and migrated when it is opened. A PostgreSQL database is migrated by `evsys dashboard upgrade`,
because other processes may be using it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from ....errors import ConfigError, DataError, MissingExtraError, show
from ....log import get_logger
from ....redact import redact_text
from . import schema

_MIGRATIONS = Path(__file__).parents[1] / "migrations"
_NETWORK_FILESYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
    "9p",
    "afs",
    "ceph",
}
"""File systems on which SQLite's write-ahead log is unsafe, because it needs shared memory between processes."""


def open_database(address: str, *, upgrade: bool | None = None) -> Engine:
    """Open the database at a path or a `postgresql://` URL, with the current schema."""
    engine = connect(address)
    try:
        _migrate(engine, engine.dialect.name == "sqlite" if upgrade is None else upgrade)
    except DBAPIError as error:
        engine.dispose()
        raise DataError(
            f"{hide_password(address)}: the database cannot be used: {redact_text(str(error.orig))}"
        ) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def connect(address: str) -> Engine:
    """Create an engine without connecting."""
    if "://" not in address:
        path = Path(address).expanduser().absolute()
        _refuse_network_filesystem(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # `check_same_thread` is off, because the pool passes connections between threads, one at a time.
        # `create_engine` is not imported by name: its code is generated, and the audit would report it as a replaced
        # function.
        engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30, "check_same_thread": False})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        url = make_url(address)
    except ArgumentError:
        raise ConfigError("--database is not an address. Write a path, or postgresql://user@host/name.") from None
    if url.get_backend_name() != "postgresql":
        raise ConfigError(f"--database {hide_password(address)}: only SQLite files and PostgreSQL are known.")
    try:
        # `pool_pre_ping` replaces closed connections before a request uses them. `client_encoding`, because a database
        # in SQL_ASCII returns text as bytes otherwise.
        options = {"connect_args": {"client_encoding": "utf8"}}
        url = url.set(drivername="postgresql+psycopg")
        return sqlalchemy.create_engine(url, pool_size=10, pool_pre_ping=True, **options)
    except ModuleNotFoundError:
        raise MissingExtraError("a dashboard in PostgreSQL", "postgres") from None


def back_up(engine: Engine, target: Path) -> None:
    """Copy a SQLite database; it may be in use."""
    if engine.dialect.name != "sqlite":
        raise ConfigError("Back up a PostgreSQL database with pg_dump, and restore it with pg_restore.")
    if target.exists():
        raise DataError(f"{target}: it exists already. Name a new file.")
    _copy(Path(str(engine.url.database)), target)


def restore(backup: Path, target: Path) -> None:
    """Restore a backup; the replaced database is renamed and kept. Raise if a server is using it."""
    _check_is_dashboard(backup)
    if target.exists():
        _refuse_if_used(target)
        replaced = target.with_name(f"{target.name}.{time.strftime('%Y%m%d-%H%M%S')}.before-restore")
        target.rename(replaced)
        for suffix in ("-wal", "-shm"):  # or SQLite would apply them to the restored file
            with contextlib.suppress(FileNotFoundError):
                target.with_name(target.name + suffix).rename(replaced.with_name(replaced.name + suffix))
    target.parent.mkdir(parents=True, exist_ok=True)
    _copy(backup, target)


def hide_password(address: str) -> str:
    """The URL without its password."""
    return redact_text(address) if "://" in address else address


def _migrate(engine: Engine, upgrade: bool) -> None:
    script = ScriptDirectory.from_config(_config())
    with _lock_migration(engine) as connection:
        current = MigrationContext.configure(connection).get_current_revision()
        if current == script.get_current_head():
            return
        if current is not None and current not in {revision.revision for revision in script.walk_revisions()}:
            raise DataError(
                f"the database is of a newer version ({show(current)}). Upgrade evsys-sdk, or restore an older copy."
            )
        if not upgrade:
            raise DataError("the database is of an older version. Make a copy of it, then run: evsys dashboard upgrade")
        if current is not None and engine.dialect.name == "sqlite":
            path = Path(str(engine.url.database))
            copy = path.with_name(f"{path.name}.{current}.before-upgrade")
            get_logger(__name__).warning("migrating %s; its copy is %s", path, copy)
            if not copy.exists():
                _copy(path, copy)
        config = _config()
        config.attributes["connection"] = connection
        if current is None:
            schema.metadata.create_all(connection)
            command.stamp(config, "head")
        else:
            command.upgrade(config, "head")


def _copy(source: Path, target: Path) -> None:
    """Copy a SQLite database including its log; `target` is replaced atomically."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)  # of an interrupted copy
    with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(temporary)) as new:
        old.backup(new)
    temporary.replace(target)


@contextlib.contextmanager
def _lock_migration(engine: Engine) -> Generator[Connection]:
    """Yield a connection in a transaction that excludes migrations by other processes."""
    # Locked before reading, because two processes that find a new SQLite file empty would both create tables.
    with engine.execution_options(writes=True).connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # an arbitrary number, the same in all versions
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7223481)")
        yield connection


def _config() -> Config:
    config = Config()
    # `configparser` interpolates single % signs.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy begins transactions
    connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for writers
    connection.execute("PRAGMA synchronous = FULL")  # committed data survive a power failure
    connection.execute("PRAGMA foreign_keys = ON")  # off by default in SQLite
    connection.execute("PRAGMA cache_size = -65536")  # negative: KiB, not pages
    connection.execute("PRAGMA temp_store = MEMORY")
    # SQLite's own `lower` handles ASCII only, and search terms are lowered by Python.
    connection.create_function("lower", 1, _lower, deterministic=True)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _begin_sqlite(connection: Connection) -> None:
    # A read transaction that starts to write fails immediately if another process has written meanwhile, regardless of
    # the timeout. So a write transaction takes the lock when it begins.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


def _check_is_dashboard(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Name a copy that `evsys dashboard backup` made.")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as copy:
            tables = {row[0] for row in copy.execute("SELECT name FROM sqlite_master")}
            sound = copy.execute("PRAGMA quick_check").fetchone()[0] == "ok"
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path}: this is not a database ({error}).") from None
    if not sound or not {"experiment", "alembic_version"} <= tables:
        raise DataError(f"{path}: this is not an intact copy of a dashboard's database.")


def _refuse_if_used(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as database:
        try:
            # With a write-ahead log, BEGIN EXCLUSIVE alone only detects writers; the pragma detects every connection.
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("BEGIN EXCLUSIVE")
            database.execute("ROLLBACK")
        except sqlite3.OperationalError:
            raise DataError(f"{path}: a server is using it. Stop it first.") from None
        except sqlite3.DatabaseError:
            pass  # damaged, a reason for the restore


def _refuse_network_filesystem(path: Path) -> None:
    """Raise if the path is on a network file system, where SQLite loses data."""
    folder = next(parent for parent in path.parents if parent.exists()).resolve()
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    below = [(fields[1], fields[2]) for fields in mounts if folder.is_relative_to(fields[1].replace("\\040", " "))]
    # mounts are nested: the longest path is the innermost
    kind = max(below, key=lambda mount: len(mount[0]), default=("", ""))[1]
    if kind in _NETWORK_FILESYSTEMS:
        raise ConfigError(
            f"--database {path}: it is on a network file system ({kind}), where SQLite loses data. Name a file on a "
            "local disk, or use PostgreSQL."
        )
