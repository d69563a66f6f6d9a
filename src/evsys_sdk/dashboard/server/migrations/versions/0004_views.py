"""What clients state of an experiment becomes one JSON value, and lists are read from stored views."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TEXTS = (
    *("name", "description", "hypothesis", "status", "verdict", "sentence", "metric", "mode", "best_run"),
    *("parent_id", "invalidated", "conclusion_text", "recipe_kind", "config_sha256"),
)
_NUMBERS = ("best_score", "best_low", "best_high", "started", "ended", "usd")
_COUNTS = ("n_runs", "n_arms", "n_done", "n_failures")
_LISTS = ("tags", "models", "algorithms", "backends", "varied", "flags")
_OBJECTS = ("spend", "config", "conclusion", "commands")
_NOT_STATED = ("usd", "flags", "words", "n_notes")
_PARENTS = "ix_experiment_project_id_parent_id"


def _old_columns() -> list[sa.Column[Any]]:
    return [
        *(sa.Column(name, sa.Text(), nullable=False, server_default="") for name in (*_TEXTS, "words")),
        *(sa.Column(name, sa.Float(precision=53)) for name in _NUMBERS),
        *(sa.Column(name, sa.Integer()) for name in _COUNTS),
        sa.Column("n_notes", sa.Integer(), nullable=False, server_default="0"),
        *(sa.Column(name, sa.Text(), nullable=False, server_default="[]") for name in _LISTS),
        *(sa.Column(name, sa.Text(), nullable=False, server_default="{}") for name in _OBJECTS),
    ]


def upgrade() -> None:
    """Gather what was stated; views are made when they are first asked for."""
    op.add_column("experiment", sa.Column("heard", sa.Float(precision=53), nullable=False, server_default="0"))
    op.add_column("experiment", sa.Column("told", sa.Text(), nullable=False, server_default="{}"))
    connection = op.get_bind()
    names = [name for name in (*_TEXTS, *_NUMBERS, *_COUNTS, *_LISTS, *_OBJECTS) if name not in _NOT_STATED]
    rows = connection.execute(sa.text(f"SELECT project_id, id, {', '.join(names)} FROM experiment")).mappings().all()
    for row in rows:
        told = {name: row[name] for name in names if row[name] not in ("", None, "[]", "{}")}
        told |= {name: json.loads(told[name]) for name in (*_LISTS, *_OBJECTS) if name in told}
        values = {"told": json.dumps(told, ensure_ascii=False), "of": row["project_id"], "named": row["id"]}
        connection.execute(sa.text("UPDATE experiment SET told = :told WHERE project_id = :of AND id = :named"), values)
    same = "stream.project_id = experiment.project_id AND stream.experiment_id = experiment.id"
    heard = f"SELECT max(updated) FROM stream WHERE {same}"
    connection.execute(sa.text(f"UPDATE experiment SET heard = coalesce(({heard}), received)"))
    op.drop_index(_PARENTS, "experiment")
    with op.batch_alter_table("experiment") as table:
        for column in _old_columns():
            table.drop_column(column.name)
        table.alter_column("heard", server_default=None)
        table.alter_column("told", server_default=None)
    op.create_table(
        "experiment_view",
        *(sa.Column(name, sa.String(length=200), nullable=False) for name in ("project_id", "folder")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("version", "made_by")),
        sa.Column("status", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text()) for name in ("id", "name", "verdict")),
        sa.Column("started", sa.Float(precision=53)),
        sa.Column("mode", sa.Text()),
        sa.Column("score", sa.Float(precision=53)),
        *(sa.Column(name, sa.Text()) for name in ("parent", "tags", "algorithms", "models")),
        *(sa.Column(name, sa.Float(precision=53)) for name in ("tokens", "usd", "wall_s")),
        sa.PrimaryKeyConstraint("project_id", "folder", name=op.f("pk_experiment_view")),
    )
    op.create_table(
        "experiment_detail",
        *(sa.Column(name, sa.String(length=200), nullable=False) for name in ("project_id", "folder")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("text", "view")),
        sa.PrimaryKeyConstraint("project_id", "folder", name=op.f("pk_experiment_detail")),
    )


def downgrade() -> None:
    """Spread it over columns again."""
    op.drop_table("experiment_detail")
    op.drop_table("experiment_view")
    columns = _old_columns()
    for column in columns:
        op.add_column("experiment", column)
    connection = op.get_bind()
    known = {column.name for column in columns}
    for project, id, told in connection.execute(sa.text("SELECT project_id, id, told FROM experiment")).all():
        stated = {name: value for name, value in json.loads(told).items() if name in known}
        values = {name: json.dumps(one) if isinstance(one, list | dict) else one for name, one in stated.items()}
        if values:
            changes = ", ".join(f"{name} = :{name}" for name in values)
            statement = sa.text(f"UPDATE experiment SET {changes} WHERE project_id = :of_project AND id = :of_id")
            connection.execute(statement, {**values, "of_project": project, "of_id": id})
    with op.batch_alter_table("experiment") as table:
        table.drop_column("heard")
        table.drop_column("told")
    op.create_index(_PARENTS, "experiment", ["project_id", "parent_id"])
