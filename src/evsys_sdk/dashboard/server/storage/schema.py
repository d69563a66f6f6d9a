"""The database schema for SQLite and PostgreSQL; `migrations/` upgrades older databases.

Fields for lists and filters have their own columns; other fields are stored as JSON text. Points are keyed by numbers
instead of names, because there are millions of them. Times are seconds since 1970.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from ....history.cache import COLUMNS, LISTED

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
Id = String(200)
Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements INTEGER only
Double = Float(53)  # 53 bits are double precision in PostgreSQL too


def _keys(*names: str, kind: Any = Id) -> list[Column[Any]]:
    return [Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def _columns(kind: Any, *names: str, default: Any = None) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False, default=default) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def _number() -> Column[Any]:
    return Column("no", Number, primary_key=True, autoincrement=True)


project = Table(
    "project",
    metadata,
    *_keys("id"),
    *_columns(Text, "name"),
    *_columns(Double, "created"),
    *_columns(BigInteger, "version"),
)

api_key = Table(
    "api_key",
    metadata,
    *_keys("id"),
    *_columns(Id, "project_id"),
    *_columns(Text, "name", "scopes"),
    Column("hash", String(64), nullable=False, unique=True),
    *_columns(Double, "created"),
    *_optional(Double, "expires", "last_used"),
    *_columns(Boolean, "revoked"),
    ForeignKeyConstraint(["project_id"], ["project.id"]),
)

web_session = Table(
    "web_session",
    metadata,
    *_keys("hash", kind=String(64)),
    *_columns(Id, "key_id"),
    *_columns(Double, "expires"),
    ForeignKeyConstraint(["key_id"], ["api_key.id"]),
)

stream = Table(
    "stream",
    metadata,
    *_keys("project_id", "id"),
    *_columns(BigInteger, "next_seq"),
    *_optional(Id, "experiment_id"),
    *_columns(Double, "updated"),
)

quarantine = Table(
    "quarantine",
    metadata,
    *_keys("project_id", "stream_id"),
    *_keys("seq", kind=BigInteger),
    *_columns(Text, "reason", "line"),
    *_columns(Double, "at"),
)

experiment = Table(
    "experiment",
    metadata,
    *_keys("project_id", "id"),
    *_columns(BigInteger, "version"),
    *_columns(Double, "received", "heard"),
    *_columns(Text, "told"),
    Index(None, "project_id", "received", "id"),
    Index(None, "project_id", "version"),
)

_COLUMN_TYPES = {"TEXT": Text, "REAL": Double, "INTEGER": BigInteger}
experiment_view = Table(
    "experiment_view",
    metadata,
    *_keys("project_id", "folder"),  # `folder` is the id; named as in the index on disk
    *_columns(BigInteger, "version", "made_by"),
    *_columns(Text, "status"),
    *(Column(name, _COLUMN_TYPES[COLUMNS[name][0]]) for name in LISTED),
)
"""The views of experiments, rebuilt when `version` has changed; queried by `history/query.py`."""
experiment_detail = Table(
    "experiment_detail", metadata, *_keys("project_id", "folder"), *_columns(Text, "text", "view")
)
"""Large columns of views, in a separate table so that lists read less; as in the index on disk."""

run = Table(
    "run",
    metadata,
    _number(),
    *_columns(Id, "project_id", "id", "experiment_id"),
    *_columns(Text, "arm"),
    *_columns(Text, "name", "run", "status", "error", "unscored", "recipe_kind", default=""),
    *_optional(BigInteger, "seed", "step", "total_steps"),
    *_optional(Double, "started", "ended", "best_score"),
    *_columns(Text, "metrics", "spend", "artifacts", "config", default="{}"),
    *_columns(Text, "checkpoints", "datasets", "benchmarks", default="[]"),
    UniqueConstraint("project_id", "id"),
    UniqueConstraint("project_id", "experiment_id", "arm"),
)

metric_key = Table(
    "metric_key",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False, unique=True),
)

metric_point = Table(
    "metric_point",
    metadata,
    *_keys("run_no", kind=BigInteger),
    *_keys("key_id", kind=Integer),
    *_keys("step", kind=BigInteger),
    *_optional(Double, "at", "value"),
    *_optional(String(9), "odd"),
    sqlite_with_rowid=False,  # clustered by key: needs no separate index, and a curve is one range scan
)

metric_latest = Table(
    "metric_latest",
    metadata,
    *_keys("run_no", kind=BigInteger),
    *_keys("key_id", kind=Integer),
    *_columns(BigInteger, "step"),
    *_optional(Double, "last"),
    sqlite_with_rowid=False,
)

score = Table(
    "score",
    metadata,
    *_keys("run_no", kind=BigInteger),
    *_keys("split", kind=String(100)),
    *_keys("name", kind=String(300)),
    *_keys("step", kind=BigInteger),
    *_columns(Id, "id"),
    *_columns(Text, "line"),
)

rollout = Table(
    "rollout",
    metadata,
    _number(),
    *_columns(BigInteger, "run_no", "step"),
    *_columns(String(100), "split"),
    *_columns(String(300), "name"),
    *_columns(String(500), "task"),
    *_columns(Integer, "sample"),
    *_columns(Text, "status", "preview", "body"),
    *_optional(Double, "reward"),
    *_optional(BigInteger, "tokens"),
    *_optional(Integer, "turns"),
    UniqueConstraint("run_no", "split", "name", "step", "task", "sample"),
)

event = Table(
    "event",
    metadata,
    _number(),
    *_columns(Id, "project_id", "experiment_id", "id"),
    *_optional(Double, "time"),
    *_columns(Text, "kind", "data"),
    UniqueConstraint("project_id", "experiment_id", "id"),
)

spend_line = Table(
    "spend_line",
    metadata,
    *_keys("project_id", "experiment_id"),
    *_keys("number", kind=BigInteger),
    *_columns(Text, "line"),
)

anchor = Table(
    "anchor",
    metadata,
    _number(),
    *_columns(Id, "project_id"),
    *_optional(Id, "experiment_id"),
    *_columns(BigInteger, "events", default=0),
    *_columns(Text, "head"),
    *_columns(Double, "at"),
    Index(None, "project_id", "experiment_id"),
)

loop = Table("loop", metadata, *_keys("project_id", "system"), *_columns(Double, "at"), *_columns(Text, "page"))

request = Table(
    "request",
    metadata,
    *_keys("id"),
    *_columns(Id, "project_id", "experiment_id"),
    *_columns(Text, "kind", "subject", "reason", "author", "state", "answer"),
    *_columns(Double, "time"),
    Index(None, "project_id", "experiment_id"),
)

data_entry = Table(
    "data_entry",
    metadata,
    *_keys("project_id", "id"),
    *_columns(String(20), "kind"),
    *_columns(Id, "name", "split"),
    *_columns(Integer, "version"),
    *_optional(Integer, "rows"),
    *_optional(BigInteger, "bytes"),
    *_columns(Text, "format", "metadata"),
    *_columns(String(64), "sha256"),
    *_columns(Double, "created"),
    *_columns(Boolean, "complete"),
    Index(None, "project_id", "kind", "name", "version"),
)

data_chunk = Table(
    "data_chunk",
    metadata,
    *_keys("project_id", "entry_id"),
    *_keys("number", kind=Integer),
    *_columns(Integer, "first_row", "rows"),
    *_columns(LargeBinary, "body"),
)
