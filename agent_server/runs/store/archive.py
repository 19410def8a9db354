"""Operations on a whole database for the command line: backup, restore, schema downgrade, compaction and removal.

A backup is gzip-compressed JSON lines, the same for SQLite and PostgreSQL: a head with the schema's revision, one line
for each row, and an end with the number of rows, by which a truncated file is detected. It is read in one snapshot, so
a server may run meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, LargeBinary, Table, column, func, select, table, tuple_

from agent_server.runs.store import schema
from agent_server.runs.store.connections import Connections, StoreUnavailable, is_memory, with_driver
from agent_server.runs.store.database import empty_log, give_back, make_file, patiently
from agent_server.runs.store.migrate import begin_alone, downgrade, load, migrate, upgrade
from agent_server.runs.store.removal import RemovalScope, RemovedCounts, remove_all

T = TypeVar("T")
LOCK_SECONDS = 20.0
"""How long a transaction waits for a server that writes to the same file."""

_BYTES = tuple(
    each.name
    for source in (schema.contents, schema.run_events)
    for each in source.c
    if isinstance(each.type, LargeBinary)
)
"""Columns that are base64 in a line."""
FORMAT = "agent-server threads"
PAGE = 500
FILES_PAGE = 8
"""Rows per query, and rows of whole files per query."""


class ArchiveError(Exception):
    """A database operation failed. The message is a sentence for the operator."""


class ArchiveHead(msgspec.Struct, kw_only=True):
    """The first line. revision: of the schema of the rows."""

    format: str
    revision: str


class ArchiveLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A row of a table or, if `table` is empty, the end with the number of rows."""

    table: str = ""
    row: dict[str, Any] = {}
    rows: int = 0


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Connections]:
    """Open a database and migrate it to the newest schema. A new SQLite file is accessible only to its owner."""
    database = with_driver(url)
    if is_memory(database):
        raise ArchiveError("A store in memory ends with its server. Name a database with --store.")
    if (file := make_file(database)) is not None:
        file.make()
    connections = Connections(database)
    try:
        try:
            await migrate(connections)
        except StoreUnavailable as error:
            raise ArchiveError(error.message) from error
        yield connections
    finally:
        await connections.dispose()


async def bring_back(url: str, revision: str) -> str:
    """Downgrade a database to an earlier schema revision, for an earlier version of the server. Return the revision it
    had before. Raises ArchiveError."""
    scripts = load()
    revisions = sorted(each.revision for each in scripts.walk_revisions())
    if revision not in revisions:
        raise ArchiveError(f"Unknown revision {revision!r}. Use one of {', '.join(revisions)}.")
    async with opened(url) as connections:
        await connections.begin(lambda connection: downgrade(connection, scripts, revision))
    return str(scripts.get_current_head())


async def compact(url: str) -> tuple[int, int]:
    """Rewrite an SQLite file without its free pages; from then on it returns them to the disk by itself. Return its
    size in bytes before and after. Raises ArchiveError."""
    async with opened(url) as connections:
        if not connections.is_sqlite:
            raise ArchiveError("Only SQLite files can be compacted. For PostgreSQL use VACUUM.")
        path = str(connections.url.database)
        before = await asyncio.to_thread(os.path.getsize, path)
        await connections.connect(lambda connection: connection.exec_driver_sql("VACUUM"))
        await connections.connect(empty_log)
        return before, await asyncio.to_thread(os.path.getsize, path)


def _rows(connection: Connection, source: Table) -> Iterator[dict[str, object]]:
    """Yield all rows in the order of the primary key, one page per query."""
    keys = list(source.primary_key)
    query = select(source).order_by(*keys).limit(min(PAGE, FILES_PAGE) if source is schema.contents else PAGE)
    page = connection.execute(query).all()
    while page:
        for row in page:
            yield {str(name): value for name, value in row._mapping.items()}
        last = tuple(page[-1]._mapping[key] for key in keys)
        page = connection.execute(query.where(tuple_(*keys) > tuple_(*last))).all()


async def backup(url: str, path: Path) -> int:
    """Write all rows into a new file that only its owner can read. Return the number of rows. Raises ArchiveError."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be created: {error.strerror}.") from error

    def write(connection: Connection) -> int:
        count = 0
        with os.fdopen(descriptor, "wb") as raw, gzip.open(raw, "wb") as file:
            file.write(_line(ArchiveHead(format=FORMAT, revision=str(load().get_current_head()))))
            for source in schema.metadata.sorted_tables:
                for row in _rows(connection, source):
                    file.write(_line(ArchiveLine(table=str(source.name), row=row)))
                    count += 1
            file.write(_line(ArchiveLine(rows=count)))
        return count

    try:
        async with opened(url) as connections:
            return await connections.snapshot(write)
    except BaseException:
        os.unlink(path)  # noqa: PTH108 - in a command's own loop, which nothing else waits for
        raise


def _line(row: msgspec.Struct) -> bytes:
    return msgspec.json.encode(row) + b"\n"


async def restore(url: str, path: Path) -> int:
    """Restore a backup into an empty database, completely or not at all. Return the number of rows. Raises
    ArchiveError."""
    scripts = load()

    def write(connection: Connection) -> int:
        begin_alone(connection)
        for source in schema.metadata.sorted_tables:
            if connection.scalar(select(func.count()).select_from(source)):
                raise ArchiveError("The database already has threads. Restore a backup into an empty one.")
        if head.revision != scripts.get_current_head():  # insert rows into their own schema, then migrate them
            downgrade(connection, scripts, head.revision, in_transaction=True)
        count = _insert(connection, lines)
        upgrade(connection, scripts, in_transaction=True)
        return count

    try:
        with path.open("rb") as raw:
            lines: Iterator[bytes] = iter(gzip.GzipFile(fileobj=raw, mode="rb"))
            head = msgspec.json.decode(next(lines, b""), type=ArchiveHead)
            if head.format != FORMAT or head.revision not in {each.revision for each in scripts.walk_revisions()}:
                raise ArchiveError("The file was made by a newer version of this server, or is not a backup.")
            async with opened(url) as connections:
                return await connections.begin(write)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (EOFError, gzip.BadGzipFile, msgspec.MsgspecError) as error:
        raise ArchiveError(f"{path} is not a complete backup. Nothing was restored.") from error


def _insert(connection: Connection, lines: Iterator[bytes]) -> int:
    table_names = {each.name for each in schema.metadata.sorted_tables}
    for count, text in enumerate(lines):
        line = msgspec.json.decode(text, type=ArchiveLine)
        if not line.table:
            if line.rows != count or next(lines, None) is not None:
                break
            return count
        if line.table not in table_names:
            raise ArchiveError(f"The backup has rows of an unknown table {line.table[:80]!r}. Use a newer version.")
        row = {**line.row, **{name: b64decode(line.row[name]) for name in _BYTES if name in line.row}}
        connection.execute(table(line.table, *map(column, row)).insert().values(row))
    raise EOFError


async def remove(
    url: str, scope: RemovalScope, report: Callable[[RemovedCounts], Awaitable[None]] | None = None
) -> RemovedCounts:
    """Permanently remove threads and responses with everything that belongs to them.

    The transactions are short, so a server may run meanwhile. report: called with the removals so far. An interrupted
    removal keeps what it has done.
    """
    async with opened(url) as connections:

        async def write(work: Callable[[Connection], T]) -> T:
            return await patiently(lambda: connections.begin(work), LOCK_SECONDS)

        removed = await remove_all(write, scope, report=report)
        if connections.is_sqlite:
            await give_back(write)
            await connections.connect(empty_log)
    return removed
