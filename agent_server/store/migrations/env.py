"""Run by alembic; the connection is handed in by `agent_server.store.migrate`."""

from alembic import context

from agent_server.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
