"""Bringing a database to the newest schema, with the migrations in this package."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from agent_server.store.schema import metadata

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK = 0x61675F6D6967  # one server migrates a shared PostgreSQL at a time
TARGET = "head"


async def migrate(engine: AsyncEngine) -> None:
    """Upgrade the database. The migrations are read in a thread, since that is file work, and run on a connection."""
    scripts = await asyncio.to_thread(load)
    async with engine.begin() as connection:
        await connection.run_sync(upgrade, scripts)


def load() -> ScriptDirectory:
    """Every migration, imported."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    list(scripts.walk_revisions())
    return scripts


def upgrade(connection: Connection, scripts: ScriptDirectory) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})

    def steps(revision: Any, _: Any) -> Any:
        return scripts._upgrade_revs(TARGET, revision)  # as alembic's own `upgrade` command does

    with EnvironmentContext(Config(), scripts, fn=steps, destination_rev=TARGET) as environment:
        environment.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
        with environment.begin_transaction():
            environment.run_migrations()
