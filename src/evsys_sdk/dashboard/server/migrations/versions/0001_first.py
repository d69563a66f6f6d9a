"""The first schema. A new database is made from `schema.py`; only what is there already is migrated, from here on."""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: every database that is migrated has these tables."""


def downgrade() -> None:
    """Nothing is older."""
