"""Run the migrations on the connection from `storage/database.py`."""

from __future__ import annotations

from alembic import context

from evsys_sdk.dashboard.server.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=False,  # the caller has a transaction
)
context.run_migrations()
