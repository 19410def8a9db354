"""Connections to a database, on which synchronous work runs in a transaction.

SQLite's statements run in the calling thread, which is the store's own (see `LoopThread`). PostgreSQL is reached by
asyncpg: while it works, the thread's loop goes on with other transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

T = TypeVar("T")
CONNECT_SECONDS = 5.0
BUSY_MILLISECONDS = 100
"""How long one statement waits for a lock. It holds up the store's thread, so the writer waits beyond that."""


def with_driver(url: str) -> URL:
    """The URL with the driver that this store uses."""
    parsed = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    drivers = {"sqlite": "sqlite", "postgresql": "postgresql+asyncpg"}
    return parsed.set(drivername=drivers.get(parsed.get_backend_name(), parsed.drivername))


def is_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


class Connections:
    """A pool of connections. Errors do not show parameters: those are users' words, and errors are logged."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self._sync: Engine | None = None
        self.asyncpg: AsyncEngine | None = None
        if url.get_backend_name() == "sqlite":
            self._sync = _sqlite(url)
        else:
            connecting = {"timeout": CONNECT_SECONDS}
            self.asyncpg = create_async_engine(url, pool_pre_ping=True, connect_args=connecting, hide_parameters=True)

    @property
    def is_sqlite(self) -> bool:
        return self._sync is not None

    async def begin(self, work: Callable[[Connection], T]) -> T:
        """What `work` returned, in a transaction that is committed after it."""
        if self._sync is not None:
            with self._sync.begin() as connection:
                return work(connection)
        assert self.asyncpg is not None
        async with self.asyncpg.begin() as connection:
            return await connection.run_sync(work)

    async def snapshot(self, work: Callable[[Connection], T]) -> T:
        """What `work` returned. Whatever it reads is of one moment: a message, and the files in it."""

        def reading(connection: Connection) -> T:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")  # Python's driver begins none before a SELECT
            else:
                connection.execution_options(isolation_level="REPEATABLE READ")
            return work(connection)

        return await self.connect(reading)

    async def connect(self, work: Callable[[Connection], T]) -> T:
        """What `work` returned, outside of a transaction of this class's."""
        if self._sync is not None:
            with self._sync.connect() as connection:
                return work(connection)
        assert self.asyncpg is not None
        async with self.asyncpg.connect() as connection:
            return await connection.run_sync(work)

    async def dispose(self) -> None:
        if self._sync is not None:
            self._sync.dispose()
        if self.asyncpg is not None:
            await self.asyncpg.dispose()


def _sqlite(url: URL) -> Engine:
    """WAL: readers and the writer do not wait for each other, and a killed process loses nothing committed. A file is
    never made by opening it: one that was deleted would come back empty."""
    memory = is_memory(url)
    place = ":memory:" if memory else f"file:{quote(str(url.database))}?mode=rw"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(place, uri=not memory, check_same_thread=False),
        poolclass=StaticPool if memory else QueuePool, hide_parameters=True,
    )  # fmt: skip

    def tune(connection: DBAPIConnection, _: object) -> None:
        cursor = connection.cursor()
        # auto_vacuum first: it counts only in a file without tables, or for a VACUUM
        for pragma in (
            "auto_vacuum=INCREMENTAL",
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"busy_timeout={BUSY_MILLISECONDS}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    if not memory:
        event.listen(engine, "connect", tune)
    return engine
