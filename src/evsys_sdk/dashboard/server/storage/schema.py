"""The tables. One schema for SQLite and PostgreSQL; `migrations/` brings an older database up to it.

What is listed or filtered by has its own column; what is only shown is kept as JSON text. Points are keyed by
numbers rather than names, because there are millions of them. Times are seconds since 1970.
"""

from __future__ import annotations

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
Number = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER counts up by itself in SQLite
Double = Float(53)  # so many bits are double precision in PostgreSQL as well

project = Table(
    "project",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("version", BigInteger, nullable=False),
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("name", Text, nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("last_used", Double),
    Column("revoked", Boolean, nullable=False),
    ForeignKeyConstraint(["project_id"], ["project.id"]),
)

web_session = Table(
    "web_session",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("key_id", Id, nullable=False),
    Column("expires", Double, nullable=False),
    ForeignKeyConstraint(["key_id"], ["api_key.id"]),
)

stream = Table(
    "stream",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("id", Id, primary_key=True),
    Column("next_seq", BigInteger, nullable=False),
    Column("experiment_id", Id),
    Column("updated", Double, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("stream_id", Id, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("line", Text, nullable=False),
    Column("at", Double, nullable=False),
)

experiment = Table(
    "experiment",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("id", Id, primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("received", Double, nullable=False),
    Column("heard", Double, nullable=False),
    Column("told", Text, nullable=False),
    Index(None, "project_id", "received", "id"),
    Index(None, "project_id", "version"),
)

_COLUMN_TYPES = {"TEXT": Text, "REAL": Double, "INTEGER": BigInteger}
experiment_view = Table(
    "experiment_view",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("folder", Id, primary_key=True),  # its id: the name is that of the same column on a disk
    Column("version", BigInteger, nullable=False),
    Column("made_by", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    *(Column(name, _COLUMN_TYPES[COLUMNS[name][0]]) for name in LISTED),
)
"""The views of experiments, made again when `version` has changed; `history/query.py` asks it."""
experiment_detail = Table(
    "experiment_detail",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("folder", Id, primary_key=True),
    Column("text", Text, nullable=False),
    Column("view", Text, nullable=False),
)
"""What is needed of a few only, kept apart so that lists read little; as on a disk."""

run = Table(
    "run",
    metadata,
    Column("no", Number, primary_key=True, autoincrement=True),
    Column("project_id", Id, nullable=False),
    Column("id", Id, nullable=False),
    Column("experiment_id", Id, nullable=False),
    Column("arm", Text, nullable=False),
    *(
        Column(name, Text, nullable=False, default="")
        for name in ("name", "run", "status", "error", "unscored", "recipe_kind")
    ),
    *(Column(name, BigInteger) for name in ("seed", "step", "total_steps")),
    *(Column(name, Double) for name in ("started", "ended", "best_score")),
    *(Column(name, Text, nullable=False, default="{}") for name in ("metrics", "spend", "artifacts", "config")),
    *(Column(name, Text, nullable=False, default="[]") for name in ("checkpoints", "datasets", "benchmarks")),
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
    Column("run_no", BigInteger, primary_key=True, autoincrement=False),
    Column("key_id", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double),
    Column("value", Double),
    Column("odd", String(9)),
    sqlite_with_rowid=False,  # rows lie in the order of their key: no index next to them, and a curve is read in one go
)

metric_latest = Table(
    "metric_latest",
    metadata,
    Column("run_no", BigInteger, primary_key=True, autoincrement=False),
    Column("key_id", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),
    Column("last", Double),
    sqlite_with_rowid=False,
)

score = Table(
    "score",
    metadata,
    Column("run_no", BigInteger, primary_key=True, autoincrement=False),
    Column("split", String(100), primary_key=True),
    Column("name", String(300), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Id, nullable=False),
    Column("line", Text, nullable=False),
)

rollout = Table(
    "rollout",
    metadata,
    Column("no", Number, primary_key=True, autoincrement=True),
    Column("run_no", BigInteger, nullable=False),
    Column("split", String(100), nullable=False),
    Column("name", String(300), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("task", String(500), nullable=False),
    Column("sample", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("reward", Double),
    Column("tokens", BigInteger),
    Column("turns", Integer),
    Column("preview", Text, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("run_no", "split", "name", "step", "task", "sample"),
)

event = Table(
    "event",
    metadata,
    Column("no", Number, primary_key=True, autoincrement=True),
    Column("project_id", Id, nullable=False),
    Column("experiment_id", Id, nullable=False),
    Column("id", Id, nullable=False),
    Column("time", Double),
    Column("kind", Text, nullable=False),
    Column("data", Text, nullable=False),
    UniqueConstraint("project_id", "experiment_id", "id"),
)

spend_line = Table(
    "spend_line",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("experiment_id", Id, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Text, nullable=False),
)

anchor = Table(
    "anchor",
    metadata,
    Column("no", Number, primary_key=True, autoincrement=True),
    Column("project_id", Id, nullable=False),
    Column("experiment_id", Id),
    Column("events", BigInteger, nullable=False, default=0),
    Column("head", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index(None, "project_id", "experiment_id"),
)

loop = Table(
    "loop",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("system", Id, primary_key=True),
    Column("at", Double, nullable=False),
    Column("page", Text, nullable=False),
)

request = Table(
    "request",
    metadata,
    Column("id", Id, primary_key=True),
    Column("project_id", Id, nullable=False),
    Column("experiment_id", Id, nullable=False),
    *(Column(name, Text, nullable=False) for name in ("kind", "subject", "reason", "author", "state", "answer")),
    Column("time", Double, nullable=False),
    Index(None, "project_id", "experiment_id"),
)

data_entry = Table(
    "data_entry",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("id", Id, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("name", Id, nullable=False),
    Column("version", Integer, nullable=False),
    Column("split", Id, nullable=False),
    Column("rows", Integer),
    Column("bytes", BigInteger),
    Column("format", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created", Double, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("complete", Boolean, nullable=False),
    Index(None, "project_id", "kind", "name", "version"),
)

data_chunk = Table(
    "data_chunk",
    metadata,
    Column("project_id", Id, primary_key=True),
    Column("entry_id", Id, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("first_row", Integer, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
