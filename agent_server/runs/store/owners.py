"""Which servers are alive, so that a starting server can tell broken runs from those of other servers on its database.

Every server holds a lock under its own number; the system releases it when the process ends, however it ends. A run
whose owner's lock is free is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

WATCH_SECONDS = 2.0
ANSWER_SECONDS = 10.0

fcntl: Any
try:
    import fcntl as _fcntl
except ImportError:  # no flock there: every other owner counts as dead
    fcntl = None
else:
    fcntl = _fcntl


def new_owner() -> int:
    """Return a random number for this server that fits PostgreSQL's bigint."""
    return secrets.randbits(62) + 1


class Owners(Protocol):
    async def claim(self, owner: int) -> None:
        """Hold this server's lock until `release`."""

    def alive(self, owner: int) -> Coroutine[Any, Any, bool]: ...

    async def release(self) -> None: ...


class SingleProcessOwners:
    """Owners of a database that only this process can access."""

    async def claim(self, owner: int) -> None:
        pass

    async def alive(self, owner: int) -> bool:
        return False

    async def release(self) -> None:
        pass


class FileOwners:
    """Lock files in the folder of an SQLite database."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock: tuple[int, Path] | None = None

    def _path(self, owner: int) -> Path:
        return self._database.with_name(f"{self._database.name}.{owner:x}.lock")

    async def claim(self, owner: int) -> None:
        await asyncio.to_thread(self._claim, owner)

    def _claim(self, owner: int) -> None:
        for path in self._database.parent.glob(f"{self._database.name}.*.lock"):
            self._is_locked(path)  # removes the files of dead servers
        path = self._path(owner)
        while self._lock is None:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                self._lock = descriptor, path
            else:  # another server removed it as a dead server's before it was locked
                os.close(descriptor)

    async def alive(self, owner: int) -> bool:
        return await asyncio.to_thread(self._is_locked, self._path(owner))

    @staticmethod
    def _is_locked(path: Path) -> bool:
        """Return whether a process holds the lock; remove the file if none does. The check takes a shared lock, so that
        several concurrent checks do not see each other as the owner."""
        if fcntl is None:
            return False
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            path.unlink(missing_ok=True)
            return False
        finally:
            os.close(descriptor)

    async def release(self) -> None:
        if self._lock is not None:
            descriptor, path = self._lock
            self._lock = None
            await asyncio.to_thread(self._release, descriptor, path)

    @staticmethod
    def _release(descriptor: int, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(descriptor)


class AdvisoryOwners:
    """PostgreSQL's advisory locks, on a connection of their own that lives as long as the server."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._connection: AsyncConnection | None = None
        self._watching: asyncio.Task[None] | None = None

    async def claim(self, owner: int) -> None:
        await self._lock(owner)
        self._watching = asyncio.create_task(self._watch(owner), name="store owner")

    async def _lock(self, owner: int) -> None:
        connection = await self._engine.connect()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SELECT pg_advisory_lock(:owner)"), {"owner": owner})
        self._connection = connection

    async def _watch(self, owner: int) -> None:
        """Take the lock again when its connection is lost, for example by a restart of the database, so that the others
        do not consider this server dead."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                connection = self._connection
                if connection is None:
                    raise TimeoutError
                self._connection = None  # until it has answered
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await connection.execute(text("SELECT 1"))
                except BaseException:
                    await connection.invalidate()
                    await connection.close()
                    raise
                self._connection = connection
            except (SQLAlchemyError, OSError, TimeoutError):
                with contextlib.suppress(SQLAlchemyError, OSError):
                    await self._lock(owner)

    async def alive(self, owner: int) -> bool:
        """Return whether the owner's lock is held. The check takes a shared lock, so that several concurrent checks do
        not see each other as the owner."""
        async with self._engine.begin() as connection:
            is_free = await connection.scalar(text("SELECT pg_try_advisory_xact_lock_shared(:owner)"), {"owner": owner})
        return not is_free

    async def release(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.execute(text("SELECT pg_advisory_unlock_all()"))
            await connection.close()
