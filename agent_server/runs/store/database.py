"""The database under the store: opened, watched, written and read.

What differs between SQLite in a file, SQLite in memory and PostgreSQL is here alone.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Executable, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import StaticPool

from agent_server.runs.store import removal, schema
from agent_server.runs.store.direct import connector
from agent_server.runs.store.faults import Health, fault_of, refusing_nul
from agent_server.runs.store.file import DatabaseFile
from agent_server.runs.store.migrate import migrate
from agent_server.runs.store.owners import AdvisoryOwners, Alone, FileOwners, Owners, new_owner
from agent_server.runs.store.rows import FoundRow
from agent_server.runs.store.thread import LoopThread
from agent_server.runs.store.writer import PATIENCE_SECONDS, Writer, patiently

T = TypeVar("T")
OPEN_SECONDS = 20.0
WATCH_SECONDS = 2.0
PROBE_BYTES = 256 * 1024
CONNECT_SECONDS = 5.0
INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` with which a file can give pages back."""
BUSY_MILLISECONDS = 100
"""How long one statement waits for a lock. It holds up the store's thread, so the writer waits beyond that."""


class Database:
    """One database. `write` and `read` each do one piece of work in a transaction of its own, on the store's thread.

    url: as the store's. owner: what this server's runs are marked with there.
    """

    def __init__(self, url: str) -> None:
        self._url = with_driver(url)
        self._memory = is_memory(self._url)
        self.owner = new_owner()
        self._engine = make_engine(self._url, self._memory)
        self._owners = make_owners(self._url, self._memory, self._engine)
        self._file = None if self._memory else make_file(self._url)
        self._health = Health()
        self._writer = Writer(self._engine, self._health, self._check)
        self._watching: asyncio.Task[None] | None = None
        self._thread = LoopThread("store")

    @property
    def place(self) -> str:
        """Its URL, for people: without the password."""
        return make_url(self._url).render_as_string(hide_password=True)

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        return not self._memory

    @property
    def fault(self) -> str | None:
        """Why the database cannot be used now; None if nothing is known to be wrong with it."""
        return self._health.fault

    async def open(self) -> None:
        """Make or migrate the database, and say that this owner lives. StoreUnavailable if it cannot be used."""
        self._thread.start()
        await self._thread.run(self._open)

    async def _open(self) -> None:
        if self._memory:
            async with self._engine.begin() as connection:
                await connection.run_sync(schema.metadata.create_all)
        else:
            if self._file is not None:
                await asyncio.to_thread(self._file.make)
            await patiently(self._prepare, OPEN_SECONDS)
        await self._owners.claim(self.owner)
        self._writer.start()
        if not self._memory:
            self._watching = asyncio.create_task(self._watch(), name="store watch")

    async def _prepare(self) -> None:
        if self._file is not None:
            await self._file.prove_sound()
        await migrate(self._engine)

    async def _watch(self) -> None:
        """Notice what is wrong while nothing is asked of the database, and that it works again."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                self._check()
                if self.fault is not None:
                    await self._writer.write(probe, 0.0)
                elif self._file is None:
                    await self._reading(_look)
            except Exception as error:
                self._health.failed(fault_of(error) or str(error))
                if self._file is not None and self._file.lost:
                    await self._file.rescue(self._engine)

    def _check(self) -> None:
        """StoreUnavailable where what is written would be lost."""
        if self._file is not None:
            self._file.check()

    async def close(self) -> None:
        """Write what is waiting and let go of the database. Safe to call twice."""
        if self._thread.running:
            await self._thread.run(self._close)
            await self._thread.stop()

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._writer.stop()
        if self._file is not None:
            await self._file.close()
        await self._owners.release()
        await self._engine.dispose()

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], patience: float = PATIENCE_SECONDS) -> T:
        """What `work` returned, once it is committed; see `Writer.write`."""
        with refusing_nul():
            return await self._thread.run(lambda: self._writer.write(work, patience))

    async def read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """In memory there is one connection alone, so reading waits its turn behind the writer."""
        if self._memory:
            return await self.write(work)
        with refusing_nul():
            return await self._thread.run(lambda: patiently(lambda: self._reading(work), PATIENCE_SECONDS))

    async def _reading(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        self._check()
        async with self._engine.connect() as connection:
            await begin_reading(connection)
            return await work(connection)

    async def forget_removed(self) -> None:
        """Give SQLite's free pages back to the disk, in short transactions. Then write what its log still has into the
        file and empty the log: it holds pages as they were before something was removed from them. A reader may keep
        it; the next time empties it then."""
        if self._file is not None:
            await give_back(self.write)
            await self._thread.run(self._empty_log)

    async def _empty_log(self) -> None:
        async with self._engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    async def rows(self, query: Executable) -> Sequence[FoundRow]:
        """All rows that a query finds."""

        async def work(connection: AsyncConnection) -> Sequence[FoundRow]:
            return (await connection.execute(query)).all()

        return await self.read(work)

    async def lives(self, owner: int) -> bool:
        """Whether the server whose runs have that mark still runs."""
        return await self._thread.run(lambda: self._owners.alive(owner))


async def probe(connection: AsyncConnection) -> None:
    """A write that leaves nothing behind. It is as large as a long message: a database that has room for a changed row
    alone still refuses what it is there for."""
    row = {"tenant": "", "id": f"probe-{secrets.token_hex(8)}", "body": "x" * PROBE_BYTES, "created_at": 0}
    await connection.execute(schema.responses.insert().values(row))
    await connection.execute(schema.responses.delete().where(schema.responses.c.id == row["id"]))


async def give_back(write: removal.Writes) -> None:
    """Give the free pages of an SQLite file back to the disk, in short transactions."""
    left = True
    while left:
        left = await write(shrink)
        await asyncio.sleep(removal.PAUSE_SECONDS)


async def shrink(connection: AsyncConnection) -> bool:
    """Give some free pages of an SQLite file back; False if there are none, or if the file was made without that."""
    if (await connection.exec_driver_sql("PRAGMA auto_vacuum")).scalar_one() != INCREMENTAL:
        return False
    end = time.perf_counter() + removal.SLICE_SECONDS
    await connection.exec_driver_sql("SAVEPOINT shrinking")
    while (free := (await connection.exec_driver_sql("PRAGMA freelist_count")).scalar_one()) > 0:
        if time.perf_counter() > end:
            break
        # one page at a time: Python's driver takes one step of a statement that has no columns, whatever its number
        await connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
    await connection.exec_driver_sql("RELEASE shrinking")
    return bool(free)


async def begin_reading(connection: AsyncConnection) -> None:
    """All that is read in the transaction is of one moment: a message, and the files in it."""
    if connection.dialect.name == "sqlite":
        await connection.exec_driver_sql("BEGIN")  # Python's driver begins none before a SELECT
    else:
        await connection.execution_options(isolation_level="REPEATABLE READ")


async def _look(connection: AsyncConnection) -> None:
    await connection.exec_driver_sql("SELECT 1")


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
    """Errors tell no parameters: those are what was said, and what fails is logged."""
    if memory:
        return create_async_engine(url, poolclass=StaticPool, async_creator=connector(":memory:"), hide_parameters=True)
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_async_engine(
            url, pool_pre_ping=True, connect_args={"timeout": CONNECT_SECONDS}, hide_parameters=True
        )
    engine = create_async_engine(url, async_creator=connector(str(parsed.database)), hide_parameters=True)
    event.listen(engine.sync_engine, "connect", _tune_sqlite)
    return engine


def _tune_sqlite(connection: DBAPIConnection, _: object) -> None:
    """WAL: readers and the writer do not wait for each other, and a killed process loses nothing committed."""
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


def make_owners(url: str, memory: bool, engine: AsyncEngine) -> Owners:
    if memory:
        return Alone()
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return FileOwners(Path(str(parsed.database)))
    return AdvisoryOwners(engine)
