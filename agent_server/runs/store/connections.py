"""Connections to the store's database: the SQLite file, transactions, and the classification of database errors.

SQLite's statements run in the calling thread, which is the store's own (see `LoopThread`). PostgreSQL is accessed
through asyncpg, so the thread's loop runs other transactions while one waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

from adapters.errors import RequestError

T = TypeVar("T")
CONNECT_SECONDS = 5.0
BUSY_MILLISECONDS = 100
"""How long one statement waits for a lock. This blocks the store's thread, so longer waits are the writer's."""


def with_driver(url: str) -> URL:
    """Parse the URL and set the driver that this store uses."""
    parsed = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    drivers = {"sqlite": "sqlite", "postgresql": "postgresql+asyncpg"}
    return parsed.set(drivername=drivers.get(parsed.get_backend_name(), parsed.drivername))


def is_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


class Connections:
    """A pool of connections. Errors hide statement parameters, since errors are logged and parameters are user data."""

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
        """Run `work` in a transaction, commit it, and return the result."""
        if self._sync is not None:
            with self._sync.begin() as connection:
                return work(connection)
        assert self.asyncpg is not None
        async with self.asyncpg.begin() as connection:
            return await connection.run_sync(work)

    async def snapshot(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a consistent snapshot, for example of a message and its files, and return the result."""

        def reading(connection: Connection) -> T:
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")  # Python's driver begins none before a SELECT
            else:
                connection.execution_options(isolation_level="REPEATABLE READ")
            return work(connection)

        return await self.connect(reading)

    async def connect(self, work: Callable[[Connection], T]) -> T:
        """Run `work` without opening a transaction for it, and return the result."""
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
    """Create the engine of an SQLite database, in WAL mode.

    With WAL, readers and the writer do not wait for each other, and a killed process loses nothing committed. Opening
    never creates the file, since a deleted one would come back empty.
    """
    memory = is_memory(url)
    uri = ":memory:" if memory else f"file:{quote(str(url.database))}?mode=rw"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=not memory, check_same_thread=False),
        poolclass=StaticPool if memory else QueuePool, hide_parameters=True,
    )  # fmt: skip

    def tune(connection: DBAPIConnection, _: object) -> None:
        cursor = connection.cursor()
        # auto_vacuum first: it takes effect only in a file without tables, or with a VACUUM
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


log = logging.getLogger("agent_server.store")
RETRY_AFTER = 2.0
LOCKED = "another process holds its lock"
UNREACHABLE = "it cannot be reached"
TEMPORARY = frozenset({LOCKED, UNREACHABLE})
"""Faults that may disappear by themselves, so that a write is retried for a while."""
_SQLITE = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing its file failed",
    sqlite3.SQLITE_READONLY: "it may not be written to",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_CORRUPT: "its file is damaged",
    sqlite3.SQLITE_NOTADB: "its file is no database",
}
_POSTGRES = {
    "08": UNREACHABLE,  # connection exceptions
    "25006": "it may not be written to",
    "53100": "its disk is full",
    "53": "it has no more resources",
    "57": UNREACHABLE,  # shutting down, or starting
    "58": "reading or writing its files failed",
}
"""By SQLSTATE or its class (PostgreSQL, appendix A)."""


NO_TEXT = "22021"
"""character_not_in_repertoire: PostgreSQL's text type cannot contain NUL, unlike SQLite's."""


@contextlib.contextmanager
def refusing_nul() -> Iterator[None]:
    """Turn PostgreSQL's error for an id or a name with NUL into RequestError("invalid_request")."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != NO_TEXT:
            raise
        raise RequestError("invalid_request", "An id or a name may not contain NUL.") from None


class StoreUnavailable(RequestError):
    """The database cannot be used now. The request may be retried."""

    def __init__(self, fault: str) -> None:
        super().__init__("unavailable", f"The database of conversations cannot be used: {fault}.", None, RETRY_AFTER)
        self.fault = fault


class Superseded(RequestError):
    """Another server has resumed the run, or its thread continues without it, so writes of its former owner are
    refused."""

    def __init__(self) -> None:
        super().__init__("conflict", "Another server has taken over this run.", None, RETRY_AFTER)


def fault_of(error: BaseException) -> str | None:
    """Describe the database's fault that an error reports, or return None if the database is not at fault."""
    if isinstance(error, StoreUnavailable):
        return error.fault
    if isinstance(error, PoolTimeout):
        return LOCKED
    if isinstance(error, DBAPIError):
        return _of_driver(error.orig) or (UNREACHABLE if error.connection_invalidated else None)
    return UNREACHABLE if isinstance(error, OSError | TimeoutError) else _of_driver(error)


def _of_driver(error: BaseException | None) -> str | None:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return _SQLITE.get(code & 0xFF)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _POSTGRES.get(state) or _POSTGRES.get(state[:2])
    return UNREACHABLE if isinstance(error, OSError) else None


class Health:
    """Whether the database works, according to the last attempt. Only changes are logged, not every attempt."""

    def __init__(self) -> None:
        self.fault: str | None = None

    def record_failure(self, fault: str) -> None:
        if fault != self.fault:
            log.error("The database of conversations cannot be used: %s.", fault)
        self.fault = fault

    def record_success(self) -> None:
        if self.fault is not None:
            log.warning("The database of conversations can be used again.")
        self.fault = None


GONE = "its file was deleted or replaced while the server was running"
OTHERS = stat.S_IRWXO
CHECK_SECONDS = 5.0
"""How long the server's start waits for the check of a file; 1 GiB in the page cache takes about a second."""


class DatabaseFile:
    """The file of an SQLite database. The file and a new folder are created for their owner only, since conversations
    are private."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._missing_reason = GONE
        self._damage: str | None = None
        self._checking: sqlite3.Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    def make(self) -> None:
        """Create the file if there is none. Remove the permissions of other users from an existing one."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        status = self._path.stat()
        self._identity = status.st_dev, status.st_ino
        for path in (self._path, *(self._path.with_name(self._path.name + end) for end in ("-wal", "-shm"))):
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(path.stat().st_mode)
                if mode & OTHERS:
                    path.chmod(mode & ~OTHERS)
                    log.warning("Removed the permissions of other users from %s, which they could access.", path.name)

    def check(self) -> None:
        """Raise StoreUnavailable if the file is damaged or is no longer the one that was opened: SQLite would continue
        to write into a deleted file, and all of that would be lost."""
        if self._damage is not None:
            raise StoreUnavailable(self._damage)
        if not self._is_there():
            raise StoreUnavailable(self._missing_reason)

    def _is_there(self) -> bool:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    @property
    def lost(self) -> bool:
        """Whether the opened file was deleted or replaced, and has not been rescued yet."""
        return self._missing_reason == GONE and not self._is_there()

    async def prove_sound(self) -> None:
        """Raise StoreUnavailable if the file's structure is damaged. A check that takes longer than CHECK_SECONDS
        continues while the server runs; if it finds damage, `check` raises from then on."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait((self._reading,), timeout=CHECK_SECONDS)
        if self._reading.done():
            self._reading.result()
        else:
            log.info("%s is large. Its check for damage continues while the server runs.", self._path.name)
            self._reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _read(self) -> None:
        try:
            result = await asyncio.to_thread(self._quick_check)
        except sqlite3.Error as error:
            if self._closed:
                return
            if (fault := fault_of(error)) not in TEMPORARY:
                self._damage = fault
            raise
        if result != "ok":
            self._damage = f"its file is damaged ({result}); restore a backup of it"
            raise StoreUnavailable(self._damage)

    def _quick_check(self) -> str:
        """Read the whole file except for the order of its indexes. SQLite releases the GIL meanwhile."""
        uri = f"file:{quote(str(self._path))}?mode=rw"
        with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
            self._checking = connection
            try:
                return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            finally:
                self._checking = None

    async def close(self) -> None:
        """Stop a check that is still running."""
        self._closed = True
        if self._checking is not None:
            self._checking.interrupt()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def rescue(self, connections: Connections) -> None:
        """Copy the deleted file, which open connections still hold, to a new file next to its former path."""
        rescued = self._path.with_name(f"{self._path.name}.rescued-{int(time.time())}")
        try:
            os.close(os.open(rescued, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            await connections.connect(lambda connection: connection.exec_driver_sql("VACUUM INTO ?", (str(rescued),)))
        except (OSError, SQLAlchemyError) as error:
            log.error("The deleted database could not be saved: %s", str(error).partition("\n")[0])
            self._missing_reason = f"{GONE}, and could not be saved"
        else:
            self._missing_reason = f"{GONE}; its content is saved as {rescued}: stop the server and move it back"
