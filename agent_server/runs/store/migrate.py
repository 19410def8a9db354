"""Migrate a database to the newest schema, with the migrations in this package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from agent_server.runs.store.connections import Connections, StoreUnavailable
from agent_server.runs.store.schema import metadata

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK = 0x61675F6D6967  # one server migrates a shared PostgreSQL at a time
WAIT_MILLISECONDS = 20_000
"""How long a starting server waits for another one that migrates the same SQLite file."""
TARGET = "head"
Steps = Callable[[str, Any], Any]


async def migrate(connections: Connections) -> None:
    """Upgrade the database. The migration scripts are read in a thread, since that blocks."""
    scripts = await asyncio.to_thread(load)
    await connections.begin(lambda connection: upgrade(connection, scripts))


def load() -> ScriptDirectory:
    """Import all migrations."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    list(scripts.walk_revisions())
    return scripts


def upgrade(
    connection: Connection, scripts: ScriptDirectory, target: str = TARGET, *, in_transaction: bool = False
) -> None:
    """Upgrade to a revision. in_transaction: the caller has already called `begin_alone`."""
    if not in_transaction:
        begin_alone(connection)
    _check_known(connection, scripts)
    _run(connection, scripts, target, scripts._upgrade_revs)  # as alembic's own `upgrade` command does


def downgrade(connection: Connection, scripts: ScriptDirectory, target: str, *, in_transaction: bool = False) -> None:
    """Downgrade to an earlier revision; "base" removes the schema. in_transaction: see `upgrade`."""
    if not in_transaction:
        begin_alone(connection)
    _check_known(connection, scripts)
    _run(connection, scripts, target, scripts._downgrade_revs)


def _check_known(connection: Connection, scripts: ScriptDirectory) -> None:
    """Raise StoreUnavailable for a database that a newer version of this server has migrated."""
    revisions = {each.revision for each in scripts.walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in revisions:
            newest = scripts.get_current_head()
            raise StoreUnavailable(
                f"its schema has revision {revision} of a newer version of agent-server, and this version supports "
                f"revisions up to {newest}. Use the newer version, or stop it and downgrade the database with it: "
                f"agent-server threads downgrade {newest}. Or restore a backup that this version made"
            )


def begin_alone(connection: Connection) -> None:
    """Begin a transaction that excludes other servers' migrations. The current revision is read after it; otherwise two
    servers that open a new database at once would both create its tables."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        return
    usual = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout={WAIT_MILLISECONDS}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # Python's driver begins no transaction before CREATE TABLE
    connection.exec_driver_sql(f"PRAGMA busy_timeout={usual}")


def _run(connection: Connection, scripts: ScriptDirectory, target: str, steps: Steps) -> None:
    def steps_to_target(revision: object, _: object) -> object:
        return steps(target, revision)

    with EnvironmentContext(Config(), scripts, fn=steps_to_target, destination_rev=target) as environment:
        environment.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
        with environment.begin_transaction():
            environment.run_migrations()
