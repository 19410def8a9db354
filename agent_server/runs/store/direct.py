"""SQLite without a second thread: the awaitable interface that SQLAlchemy's asynchronous dialect expects, over the
standard library's blocking one.

The store's loop has a thread to itself (see `thread`), so its statements may block it. The usual driver hands each
of them to one more thread and back, which took five to ten times as long as the statements themselves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote


class DirectCursor:
    """A cursor whose awaitable methods never wait."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.arraysize = 1

    async def __aenter__(self) -> DirectCursor:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cursor.close()

    @property
    def description(self) -> object:
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._cursor.lastrowid

    async def execute(self, operation: str, parameters: Any = ()) -> DirectCursor:
        self._cursor.execute(operation, parameters)
        return self

    async def executemany(self, operation: str, parameters: Sequence[Any]) -> DirectCursor:
        self._cursor.executemany(operation, parameters)
        return self

    async def fetchall(self) -> list[object]:
        return self._cursor.fetchall()

    async def fetchone(self) -> object:
        return self._cursor.fetchone()

    async def fetchmany(self, size: int | None = None) -> list[object]:
        return self._cursor.fetchmany(size or self.arraysize)

    async def close(self) -> None:
        self._cursor.close()


class DirectConnection:
    """A connection, to be used in the thread that made it. `_connection` is what the dialect asks whether it is
    open."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._open = connection

    @property
    def isolation_level(self) -> str | None:
        return self._open.isolation_level

    def cursor(self) -> DirectCursor:
        return DirectCursor(self._open.cursor())

    async def commit(self) -> None:
        self._open.commit()

    async def rollback(self) -> None:
        self._open.rollback()

    async def create_function(self, *arguments: Any, **keywords: Any) -> None:
        self._open.create_function(*arguments, **keywords)

    async def close(self) -> None:
        self._connection = None
        self._open.close()

    def stop(self) -> None:
        """What the dialect calls where it cannot wait for `close`."""
        self._connection = None
        self._open.close()


def connector(database: str) -> Callable[..., Awaitable[DirectConnection]]:
    """What makes the engine's connections; whatever the dialect would tell the usual driver is not needed. A file is
    never made by opening it: one that was deleted would come back empty."""
    place = database if database == ":memory:" else f"file:{quote(database)}?mode=rw"

    async def connect(*_: Any, **__: Any) -> DirectConnection:
        return DirectConnection(sqlite3.connect(place, uri=database != ":memory:"))

    return connect
