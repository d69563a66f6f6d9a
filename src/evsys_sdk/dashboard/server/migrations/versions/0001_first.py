"""The first schema."""

from __future__ import annotations

from alembic import op

from evsys_sdk.dashboard.server.schema import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    metadata.create_all(op.get_bind())


def downgrade() -> None:
    """Remove every table."""
    metadata.drop_all(op.get_bind())
