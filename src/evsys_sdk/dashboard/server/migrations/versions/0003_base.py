"""The oldest schema that is migrated. A new database is made from `schema.py`."""

from __future__ import annotations

revision = "0003"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: every database that is migrated has these tables."""
