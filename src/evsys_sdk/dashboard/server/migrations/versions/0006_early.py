"""Records of runs that were not reported yet are stored with the run; extremes of metrics are no longer kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Remove three columns."""
    op.drop_index("ix_quarantine_project_id_waits_for", "quarantine")
    op.drop_column("quarantine", "waits_for")
    op.drop_column("metric_latest", "low")
    op.drop_column("metric_latest", "high")


def downgrade() -> None:
    """Add them, empty."""
    op.add_column("quarantine", sa.Column("waits_for", sa.String(length=200)))
    op.create_index("ix_quarantine_project_id_waits_for", "quarantine", ["project_id", "waits_for"])
    for name in ("low", "high"):
        op.add_column("metric_latest", sa.Column(name, sa.Float(precision=53)))
