"""Every store test runs on SQLite in a file, SQLite in memory, and a real PostgreSQL."""

from __future__ import annotations

import secrets

import asyncpg
import pytest

from agent_server.runs.store import Store
from tests.blocking import nothing_blocks
from tests.runs.store import postgres


@pytest.fixture(scope="session")
def postgres_server():
    if postgres.binaries() is None:
        pytest.skip("no PostgreSQL binaries (initdb) on this machine")
    with postgres.server() as url:
        yield url


async def fresh_database(server_url: str) -> str:
    """A new database on the server; its URL."""
    name = f"t{secrets.token_hex(6)}"
    connection = await asyncpg.connect(server_url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return server_url.replace("/postgres?", f"/{name}?")


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request, tmp_path):
    """The URL of an empty database that outlives a store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/threads.db"
    return await fresh_database(request.getfixturevalue("postgres_server"))


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
async def store(request, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/deep/threads.db"
    elif request.param == "memory":
        url = "sqlite://"
    else:
        url = await fresh_database(request.getfixturevalue("postgres_server"))
    store = Store(url)
    await store.open()
    with nothing_blocks():
        yield store
    await store.close()
