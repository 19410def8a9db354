"""Which servers live: how a starting server tells runs that broke from runs of its neighbours on the same database.

Every server holds a lock under its own number for as long as it lives; the system lets go of it when the process dies,
however it dies. A run whose owner's lock can be had is broken.
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
    """A number that no other server has; fits PostgreSQL's bigint."""
    return secrets.randbits(62) + 1


class Owners(Protocol):
    async def claim(self, owner: int) -> None:
        """Hold this server's lock until `release`."""

    def alive(self, owner: int) -> Coroutine[Any, Any, bool]: ...

    async def release(self) -> None: ...


class Alone:
    """For a database that only this process can see."""

    async def claim(self, owner: int) -> None:
        pass

    async def alive(self, owner: int) -> bool:
        return False

    async def release(self) -> None:
        pass


class FileOwners:
    """Lock files beside an SQLite database."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._held: tuple[int, Path] | None = None

    def _path(self, owner: int) -> Path:
        return self._database.with_name(f"{self._database.name}.{owner:x}.lock")

    async def claim(self, owner: int) -> None:
        await asyncio.to_thread(self._claim, owner)

    def _claim(self, owner: int) -> None:
        for left in self._database.parent.glob(f"{self._database.name}.*.lock"):
            self._is_held(left)
        path = self._path(owner)
        while self._held is None:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                self._held = descriptor, path
            else:  # a neighbour took it for a dead one's before it was locked
                os.close(descriptor)

    async def alive(self, owner: int) -> bool:
        return await asyncio.to_thread(self._is_held, self._path(owner))

    @staticmethod
    def _is_held(path: Path) -> bool:
        """Whether a process holds the lock; the file of one that does not is removed. A shared lock: of several that
        ask at once, none is taken for the owner by another."""
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
        if self._held is not None:
            descriptor, path = self._held
            self._held = None
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
        """A lock goes with its connection. After a restart of the database, or a line that was cut, it is taken again,
        lest the others believe this server dead."""
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
        """A shared lock: of several that ask at once, none is taken for the owner by another."""
        async with self._engine.begin() as connection:
            had = await connection.scalar(text("SELECT pg_try_advisory_xact_lock_shared(:owner)"), {"owner": owner})
        return not had

    async def release(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.execute(text("SELECT pg_advisory_unlock_all()"))
            await connection.close()
