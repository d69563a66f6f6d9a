"""Runs the migrations on the connection that `storage/database.py` hands over."""

from __future__ import annotations

from alembic import context

from evsys_sdk.dashboard.server.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=False,  # the transaction is that of the caller
)
context.run_migrations()
