"""URLs and engines: what differs between SQLite in a file, SQLite in memory and PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from agent_server.store.direct import connector
from agent_server.store.file import DatabaseFile
from agent_server.store.owners import AdvisoryOwners, Alone, FileOwners, Owners

CONNECT_SECONDS = 5.0
BUSY_MILLISECONDS = 100
"""How long one statement waits for a lock. It holds up the store's thread, so the writer waits beyond that."""


def with_driver(url: str) -> str:
    """The URL with the asynchronous driver that this store uses."""
    scheme, colon, rest = url.partition(":")
    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
    return drivers.get(scheme, scheme) + colon + rest


def is_memory(url: str) -> bool:
    parsed = make_url(url)
    return parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")


def make_file(url: str) -> DatabaseFile | None:
    """The file of an SQLite database, not made yet; None for databases elsewhere."""
    parsed = make_url(url)
    return DatabaseFile(Path(str(parsed.database))) if parsed.get_backend_name() == "sqlite" else None


def make_engine(url: str, memory: bool) -> AsyncEngine:
    if memory:
        return create_async_engine(url, poolclass=StaticPool, async_creator=connector(":memory:"))
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True, connect_args={"timeout": CONNECT_SECONDS})
    engine = create_async_engine(url, async_creator=connector(str(parsed.database)))
    event.listen(engine.sync_engine, "connect", _tune_sqlite)
    return engine


def _tune_sqlite(connection: Any, _: Any) -> None:
    """WAL: readers and the writer do not wait for each other, and a killed process loses nothing committed."""
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={BUSY_MILLISECONDS}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def make_owners(url: str, memory: bool, engine: AsyncEngine) -> Owners:
    if memory:
        return Alone()
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return FileOwners(Path(str(parsed.database)))
    return AdvisoryOwners(engine)
