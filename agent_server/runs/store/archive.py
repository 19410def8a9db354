"""Backups of the whole database, and what is removed from it by age or tenant.

A backup is gzip over JSON lines, the same for SQLite and PostgreSQL: a head with the schema's revision, a line for each
row, and an end that says how many there are, so that a file that was cut off is noticed. It is read in one snapshot, so
a server may go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from sqlalchemy import Connection, LargeBinary, Table, column, func, select, table, tuple_

from agent_server.runs.store import schema
from agent_server.runs.store.connections import Connections, StoreUnavailable, is_memory, with_driver
from agent_server.runs.store.database import empty_log, give_back, make_file, patiently
from agent_server.runs.store.migrate import begin_alone, downgrade, load, migrate, upgrade
from agent_server.runs.store.removal import Extent, Removed, remove_all

T = TypeVar("T")
LOCK_SECONDS = 20.0
"""How long a transaction waits for a server that writes to the same file."""

_BYTES = tuple(
    each.name
    for source in (schema.contents, schema.run_events)
    for each in source.c
    if isinstance(each.type, LargeBinary)
)
"""Columns that stand in a line as base64."""
FORMAT = "agent-server threads"
PAGE = 500
FILES_PAGE = 8
"""Rows that are read at once, and those of them that are whole files."""


class ArchiveError(Exception):
    """A backup cannot be made or restored. The message is a sentence for the operator."""


class Head(msgspec.Struct, kw_only=True):
    """The first line. revision: of the schema that the rows fit."""

    format: str
    revision: str


class Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A row of a table, or, without a table, the end with the number of rows."""

    table: str = ""
    row: dict[str, Any] = {}
    rows: int = 0


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Connections]:
    """The database, its schema at the newest revision. A new SQLite file is made for its owner alone."""
    place = with_driver(url)
    if is_memory(place):
        raise ArchiveError("A store in memory ends with its server; give a database with --store.")
    if (file := make_file(place)) is not None:
        file.make()
    connections = Connections(place)
    try:
        try:
            await migrate(connections)
        except StoreUnavailable as error:
            raise ArchiveError(error.message) from error
        yield connections
    finally:
        await connections.dispose()


async def bring_back(url: str, revision: str) -> str:
    """Bring a database back to an earlier schema, for the version of the server that has it; the one it had before.
    Raises ArchiveError."""
    scripts = load()
    known = sorted(each.revision for each in scripts.walk_revisions())
    if revision not in known:
        raise ArchiveError(f"Unknown revision {revision!r}. Use one of {', '.join(known)}.")
    async with opened(url) as connections:
        await connections.begin(lambda connection: downgrade(connection, scripts, revision))
    return str(scripts.get_current_head())


async def compact(url: str) -> tuple[int, int]:
    """Write an SQLite file anew without its free pages, so that it gives them back by itself from then on. Its bytes
    before and after. Raises ArchiveError."""
    async with opened(url) as connections:
        if not connections.is_sqlite:
            raise ArchiveError("This is for SQLite files; PostgreSQL has VACUUM.")
        place = str(connections.url.database)
        before = await asyncio.to_thread(os.path.getsize, place)
        await connections.connect(lambda connection: connection.exec_driver_sql("VACUUM"))
        await connections.connect(empty_log)
        return before, await asyncio.to_thread(os.path.getsize, place)


def _rows(connection: Connection, source: Table) -> Iterator[dict[str, object]]:
    """All rows, in the order of the key, a page at a time."""
    keys = list(source.primary_key)
    query = select(source).order_by(*keys).limit(min(PAGE, FILES_PAGE) if source is schema.contents else PAGE)
    page = connection.execute(query).all()
    while page:
        for row in page:
            yield {str(name): value for name, value in row._mapping.items()}
        last = tuple(page[-1]._mapping[key] for key in keys)
        page = connection.execute(query.where(tuple_(*keys) > tuple_(*last))).all()


async def backup(url: str, place: Path) -> int:
    """Write all rows into a new file, readable by its owner alone. How many there are. Raises ArchiveError."""
    try:
        descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise ArchiveError(f"{place} cannot be made: {error.strerror}.") from error

    def write(connection: Connection) -> int:
        count = 0
        with os.fdopen(descriptor, "wb") as raw, gzip.open(raw, "wb") as file:
            file.write(_line(Head(format=FORMAT, revision=str(load().get_current_head()))))
            for source in schema.metadata.sorted_tables:
                for row in _rows(connection, source):
                    file.write(_line(Line(table=str(source.name), row=row)))
                    count += 1
            file.write(_line(Line(rows=count)))
        return count

    try:
        async with opened(url) as connections:
            return await connections.snapshot(write)
    except BaseException:
        os.unlink(place)  # noqa: PTH108 - in a command's own loop, which nothing else waits for
        raise


def _line(row: msgspec.Struct) -> bytes:
    return msgspec.json.encode(row) + b"\n"


async def restore(url: str, place: Path) -> int:
    """Put a backup into a database that has no threads, all of it or nothing. How many rows. Raises ArchiveError."""
    try:
        with place.open("rb") as raw:
            return await _restored(url, raw)
    except OSError as error:
        raise ArchiveError(f"{place} cannot be read: {error.strerror or error}.") from error
    except (EOFError, gzip.BadGzipFile, msgspec.MsgspecError) as error:
        raise ArchiveError(f"{place} is no whole backup; nothing was restored.") from error


async def _restored(url: str, raw: BinaryIO) -> int:
    lines: Iterator[bytes] = iter(gzip.GzipFile(fileobj=raw, mode="rb"))
    head = msgspec.json.decode(next(lines, b""), type=Head)
    scripts = load()
    if head.format != FORMAT or head.revision not in {each.revision for each in scripts.walk_revisions()}:
        raise ArchiveError("The backup was made by a newer version of this server, or by something else.")

    def write(connection: Connection) -> int:
        begin_alone(connection)
        for source in schema.metadata.sorted_tables:
            if connection.scalar(select(func.count()).select_from(source)):
                raise ArchiveError("The database has threads already; a backup is restored into an empty one.")
        if head.revision != scripts.get_current_head():  # rows of an earlier version fit its schema, and grow with it
            downgrade(connection, scripts, head.revision, begun=True)
        count = _insert(connection, lines)
        upgrade(connection, scripts, begun=True)
        return count

    async with opened(url) as connections:
        return await connections.begin(write)


def _insert(connection: Connection, lines: Iterator[bytes]) -> int:
    known = {each.name for each in schema.metadata.sorted_tables}
    for count, text in enumerate(lines):
        line = msgspec.json.decode(text, type=Line)
        if not line.table:
            if line.rows != count or next(lines, None) is not None:
                break
            return count
        if line.table not in known:
            raise ArchiveError(f"The backup has rows of a table {line.table[:80]}, which this version does not know.")
        row = {**line.row, **{name: b64decode(line.row[name]) for name in _BYTES if name in line.row}}
        connection.execute(table(line.table, *map(column, row)).insert().values(row))
    raise EOFError


async def remove(url: str, extent: Extent, report: Callable[[Removed], Awaitable[None]] | None = None) -> Removed:
    """Remove threads and responses for good, with all that belongs to them, in short transactions: a server may go on
    meanwhile. report: called with what was removed so far. What was removed stays so if this is interrupted."""
    async with opened(url) as connections:

        async def write(work: Callable[[Connection], T]) -> T:
            return await patiently(lambda: connections.begin(work), LOCK_SECONDS)

        removed = await remove_all(write, extent, report=report)
        if connections.is_sqlite:
            await give_back(write)
            await connections.connect(empty_log)
    return removed
