"""Merge the reported fields of an experiment into one JSON column, add stored views, and drop three columns."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from evsys_sdk.dashboard.server.storage import schema

revision = "0006"
down_revision = "0003"
branch_labels = None
depends_on = None

_FIELDS = (
    *("name", "description", "hypothesis", "status", "verdict", "sentence", "metric", "mode", "best_run"),
    *("parent_id", "invalidated", "conclusion_text", "recipe_kind", "config_sha256"),
    *("best_score", "best_low", "best_high", "started", "ended", "n_runs", "n_arms", "n_done", "n_failures"),
)
_JSON_FIELDS = ("tags", "models", "algorithms", "backends", "varied", "spend", "config", "conclusion", "commands")
_DROPPED = ("usd", "flags", "words", "n_notes")


def upgrade() -> None:
    """Merge the columns of reported fields; views are built at the first request."""
    op.add_column("experiment", sa.Column("heard", sa.Float(precision=53), nullable=False, server_default="0"))
    op.add_column("experiment", sa.Column("told", sa.Text(), nullable=False, server_default="{}"))
    connection = op.get_bind()
    names = (*_FIELDS, *_JSON_FIELDS)
    rows = connection.execute(sa.text(f"SELECT project_id, id, {', '.join(names)} FROM experiment")).mappings().all()
    for row in rows:
        fields = {name: row[name] for name in names if row[name] not in ("", None, "[]", "{}")}
        fields |= {name: json.loads(fields[name]) for name in _JSON_FIELDS if name in fields}
        values = {"told": json.dumps(fields, ensure_ascii=False), "of": row["project_id"], "named": row["id"]}
        connection.execute(sa.text("UPDATE experiment SET told = :told WHERE project_id = :of AND id = :named"), values)
    same = "stream.project_id = experiment.project_id AND stream.experiment_id = experiment.id"
    last_upload = f"SELECT max(updated) FROM stream WHERE {same}"
    connection.execute(sa.text(f"UPDATE experiment SET heard = coalesce(({last_upload}), received)"))
    op.drop_index("ix_experiment_project_id_parent_id", "experiment")
    with op.batch_alter_table("experiment") as table:
        for name in (*names, *_DROPPED):
            table.drop_column(name)
        table.alter_column("heard", server_default=None)
        table.alter_column("told", server_default=None)
    schema.metadata.create_all(connection, [schema.experiment_view, schema.experiment_detail])
    op.drop_index("ix_quarantine_project_id_waits_for", "quarantine")
    op.drop_column("quarantine", "waits_for")
    op.drop_column("metric_latest", "low")
    op.drop_column("metric_latest", "high")
