"""An SQLite file whose tables were made in part, by a version that made them one by one, opens and loses nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, event

from agent_server.runs.store import Store, migrate
from agent_server.runs.store.schema import metadata

COLUMNS = "tenant, id, name, agent_id, archived, metadata, created_at, updated_at"
THREAD = f"INSERT INTO threads ({COLUMNS}) VALUES ('', 't', 'Kept', 'default', 0, '{{}}', 1, 1)"


def made_one_by_one() -> list[str]:
    """Every statement that the migrations change a new database with, in their order."""
    engine, told = create_engine("sqlite://"), []
    event.listen(engine, "before_cursor_execute", lambda *given: told.append((given[2], given[3])))
    with engine.connect() as connection:
        migrate.upgrade(connection, migrate.load())
    engine.dispose()
    changes = [
        statement.replace("?", repr(given[0]) if given else "?")
        for statement, given in told
        if statement.split()[0] in ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE")
    ]
    assert all("?" not in each for each in changes)
    return [each.replace("IF NOT EXISTS ", "") for each in changes]


STATEMENTS = made_one_by_one()
FIRST = next(place for place, each in enumerate(STATEMENTS) if "TABLE threads" in each) + 1


@pytest.mark.parametrize("made", range(FIRST, len(STATEMENTS) + 1))
async def test_a_file_that_was_made_in_part_is_finished(tmp_path: Path, made: int):
    with sqlite3.connect(tmp_path / "a.db") as half:
        for statement in [*STATEMENTS[:made], THREAD]:
            half.execute(statement)
    half.close()
    stores = [Store(f"sqlite:///{tmp_path}/a.db") for _ in range(2)]
    await asyncio.gather(*(each.open() for each in stores))
    assert (await stores[0].thread("", "t")).name == "Kept"
    for each in stores:
        await each.close()
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
        versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()
    engine.dispose()
    assert (differences, versions) == ([], [(migrate.load().get_current_head(),)])
