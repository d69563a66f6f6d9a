"""How the closed loops of a project stand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their table."""
    op.create_table(
        "loop",
        sa.Column("project_id", sa.String(length=200), nullable=False),
        sa.Column("system", sa.String(length=200), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("page", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "system", name=op.f("pk_loop")),
    )


def downgrade() -> None:
    """Forget them."""
    op.drop_table("loop")
