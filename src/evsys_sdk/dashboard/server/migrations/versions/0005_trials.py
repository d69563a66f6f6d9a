"""Views gain the rate at which a claim was tested; they are made again when they are next asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("experiment_view", sa.Column("error_rate", sa.Float(precision=53)))


def downgrade() -> None:
    """Remove the column."""
    with op.batch_alter_table("experiment_view") as table:
        table.drop_column("error_rate")
