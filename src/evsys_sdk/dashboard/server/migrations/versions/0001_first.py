"""The first schema. It is written out: later changes of `schema.py` must not change what this step did."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "anchor",
        sa.Column("no", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("experiment_id", sa.String(length=200), nullable=True),
        sa.Column("head", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_anchor")),
    )
    op.create_index(op.f("ix_anchor_project_id_experiment_id"), "anchor", ["project_id", "experiment_id"], unique=False)
    op.create_table(
        "data_chunk",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("entry_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first_row", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "entry_id", "number", name=op.f("pk_data_chunk")),
    )
    op.create_table(
        "data_entry",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("split", sa.String(length=200), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "id", name=op.f("pk_data_entry")),
    )
    op.create_index(
        op.f("ix_data_entry_project_id_kind_name_version"),
        "data_entry",
        ["project_id", "kind", "name", "version"],
        unique=False,
    )
    op.create_table(
        "event",
        sa.Column("no", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("experiment_id", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_event")),
        sa.UniqueConstraint("project_id", "experiment_id", "id", name=op.f("uq_event_project_id_experiment_id_id")),
    )
    op.create_table(
        "experiment",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.Float(precision=53), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("best_run", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column("invalidated", sa.Text(), nullable=False),
        sa.Column("conclusion_text", sa.Text(), nullable=False),
        sa.Column("recipe_kind", sa.Text(), nullable=False),
        sa.Column("config_sha256", sa.Text(), nullable=False),
        sa.Column("best_score", sa.Float(precision=53), nullable=True),
        sa.Column("best_low", sa.Float(precision=53), nullable=True),
        sa.Column("best_high", sa.Float(precision=53), nullable=True),
        sa.Column("started", sa.Float(precision=53), nullable=True),
        sa.Column("ended", sa.Float(precision=53), nullable=True),
        sa.Column("usd", sa.Float(precision=53), nullable=True),
        sa.Column("n_runs", sa.Integer(), nullable=True),
        sa.Column("n_arms", sa.Integer(), nullable=True),
        sa.Column("n_done", sa.Integer(), nullable=True),
        sa.Column("n_failures", sa.Integer(), nullable=True),
        sa.Column("n_notes", sa.Integer(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.Column("algorithms", sa.Text(), nullable=False),
        sa.Column("backends", sa.Text(), nullable=False),
        sa.Column("varied", sa.Text(), nullable=False),
        sa.Column("spend", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("conclusion", sa.Text(), nullable=False),
        sa.Column("commands", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "id", name=op.f("pk_experiment")),
    )
    op.create_index(op.f("ix_experiment_project_id_parent_id"), "experiment", ["project_id", "parent_id"], unique=False)
    op.create_index(
        op.f("ix_experiment_project_id_received_id"), "experiment", ["project_id", "received", "id"], unique=False
    )
    op.create_index(op.f("ix_experiment_project_id_version"), "experiment", ["project_id", "version"], unique=False)
    op.create_table(
        "metric_key",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_key")),
        sa.UniqueConstraint("name", name=op.f("uq_metric_key_name")),
    )
    op.create_table(
        "metric_latest",
        sa.Column("run_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Float(precision=53), nullable=True),
        sa.Column("low", sa.Float(precision=53), nullable=True),
        sa.Column("high", sa.Float(precision=53), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "key_id", name=op.f("pk_metric_latest")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metric_point",
        sa.Column("run_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=True),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("odd", sa.String(length=9), nullable=True),
        sa.PrimaryKeyConstraint("run_no", "key_id", "step", name=op.f("pk_metric_point")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "project",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project")),
    )
    op.create_table(
        "quarantine",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("stream_id", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("waits_for", sa.String(length=200), nullable=True),
        sa.PrimaryKeyConstraint("project_id", "stream_id", "seq", name=op.f("pk_quarantine")),
    )
    op.create_index(op.f("ix_quarantine_project_id_waits_for"), "quarantine", ["project_id", "waits_for"], unique=False)
    op.create_table(
        "request",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("experiment_id", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("time", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request")),
    )
    op.create_index(
        op.f("ix_request_project_id_experiment_id"), "request", ["project_id", "experiment_id"], unique=False
    )
    op.create_table(
        "rollout",
        sa.Column("no", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_no", sa.BigInteger(), nullable=False),
        sa.Column("split", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.String(length=500), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("tokens", sa.BigInteger(), nullable=True),
        sa.Column("turns", sa.Integer(), nullable=True),
        sa.Column("preview", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_rollout")),
        sa.UniqueConstraint(
            "run_no",
            "split",
            "name",
            "step",
            "task",
            "sample",
            name=op.f("uq_rollout_run_no_split_name_step_task_sample"),
        ),
    )
    op.create_table(
        "run",
        sa.Column("no", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("experiment_id", sa.String(length=200), nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("unscored", sa.Text(), nullable=False),
        sa.Column("recipe_kind", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("started", sa.Float(precision=53), nullable=True),
        sa.Column("ended", sa.Float(precision=53), nullable=True),
        sa.Column("best_score", sa.Float(precision=53), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("spend", sa.Text(), nullable=False),
        sa.Column("artifacts", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("checkpoints", sa.Text(), nullable=False),
        sa.Column("datasets", sa.Text(), nullable=False),
        sa.Column("benchmarks", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("no", name=op.f("pk_run")),
        sa.UniqueConstraint("project_id", "experiment_id", "arm", name=op.f("uq_run_project_id_experiment_id_arm")),
        sa.UniqueConstraint("project_id", "id", name=op.f("uq_run_project_id_id")),
    )
    op.create_table(
        "score",
        sa.Column("run_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("split", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_no", "split", "name", "step", name=op.f("pk_score")),
    )
    op.create_table(
        "spend_line",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("experiment_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "experiment_id", "number", name=op.f("pk_spend_line")),
    )
    op.create_table(
        "stream",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("experiment_id", sa.String(length=200), nullable=True),
        sa.Column("updated", sa.Float(precision=53), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "id", name=op.f("pk_stream")),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(precision=53), nullable=False),
        sa.Column("expires", sa.Float(precision=53), nullable=True),
        sa.Column("last_used", sa.Float(precision=53), nullable=True),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_api_key_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("hash", name=op.f("uq_api_key_hash")),
    )
    op.create_table(
        "web_session",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=200), nullable=False),
        sa.Column("expires", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name=op.f("fk_web_session_key_id")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_web_session")),
    )


def downgrade() -> None:
    """Remove every table."""
    for table in _TABLES:
        op.drop_table(table)


_TABLES = (
    "web_session",
    "api_key",
    "stream",
    "spend_line",
    "score",
    "run",
    "rollout",
    "request",
    "quarantine",
    "project",
    "metric_point",
    "metric_latest",
    "metric_key",
    "experiment",
    "event",
    "data_entry",
    "data_chunk",
    "anchor",
)
