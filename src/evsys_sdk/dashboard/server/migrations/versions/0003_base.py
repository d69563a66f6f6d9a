"""The oldest schema that can be migrated. A new database is created from `schema.py`."""

from __future__ import annotations

revision = "0003"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: every database that can be migrated has these tables."""
