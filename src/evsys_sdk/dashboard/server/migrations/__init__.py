"""Schema migrations for Alembic."""
