"""What an audit flagged, and how long a journal was when it was anchored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the two columns; what is there was never audited, and its anchors count no events."""
    op.add_column("experiment", sa.Column("flags", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("anchor", sa.Column("events", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget both."""
    op.drop_column("anchor", "events")
    op.drop_column("experiment", "flags")
