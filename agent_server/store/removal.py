"""What is removed for good: the threads and responses of a tenant, of one of its keys, or of a certain age.

A server removes in slices, each a transaction of its own, so that what else is written waits for one slice at most.
SQLite overwrites what a slice removes; in PostgreSQL it stays in the table's free space until a VACUUM.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec
from sqlalchemy import ColumnElement, Table, delete, exists, false, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_server.store import contents, schema

SLICE = 50
"""Threads, and responses, that are removed in one transaction."""
GOING_ON = ("waiting", "running")


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """Which threads and responses. tenant: of this one alone. key: begun with this key of the tenant, or by this
    subject of a token. before: last used before then, in milliseconds since the epoch; a thread on which a run goes on
    is in use. but: not of these tenants."""

    tenant: str | None = None
    key: str | None = None
    before: int | None = None
    but: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tenant is None and self.before is None:
            raise ValueError("neither a tenant nor a time")
        if self.key is not None and self.tenant is None:
            raise ValueError("a key is one of a tenant's")

    @property
    def whole(self) -> bool:
        """Whether it is all that a tenant has."""
        return self.key is None and self.before is None


class Removed(msgspec.Struct, kw_only=True):
    """How many, by their tenants."""

    threads: Counter[str] = msgspec.field(default_factory=Counter)
    responses: Counter[str] = msgspec.field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.threads or self.responses)

    def add(self, other: Removed) -> None:
        self.threads += other.threads
        self.responses += other.responses

    def by_tenant(self) -> Mapping[str, tuple[int, int]]:
        """Tenant → (threads, responses)."""
        return {each: (self.threads[each], self.responses[each]) for each in sorted({*self.threads, *self.responses})}


def _limits(extent: Extent, source: Table, moment: ColumnElement[int]) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if extent.tenant is not None:
        found.append(source.c.tenant == extent.tenant)
    if extent.key is not None:
        found.append(source.c.key == extent.key)
    if extent.before is not None:
        found.append(moment < extent.before)
    if extent.but:
        found.append(source.c.tenant.not_in(extent.but))
    return found


async def threads_of(connection: AsyncConnection, extent: Extent, most: int = SLICE) -> list[tuple[str, str]]:
    """(tenant, id) of some of the threads."""
    table, runs = schema.threads, schema.runs
    limits = _limits(extent, table, table.c.updated_at)
    if extent.before is not None:
        of_thread = (runs.c.tenant == table.c.tenant, runs.c.thread_id == table.c.id)
        limits.append(~exists().where(*of_thread, runs.c.status.in_(GOING_ON)))
    rows = await connection.execute(select(table.c.tenant, table.c.id).where(*limits).limit(most))
    return [(row.tenant, row.id) for row in rows]


async def remove_some(
    connection: AsyncConnection, extent: Extent, threads: Sequence[tuple[str, str]] | None = None, most: int = SLICE
) -> Removed:
    """Remove some of an extent with all that belongs to them; nothing is left once nothing was removed. threads:
    these, by tenant and id, in place of some."""
    async with overwriting(connection):
        if threads is None:
            threads = await threads_of(connection, extent, most)
        await _delete(connection, schema.threads, "id", threads)  # first: a run that begins or ends there holds the row
        released = await contents.used(connection, schema.thread_contents, threads)
        for source in schema.OF_A_THREAD:
            await _delete(connection, source, "thread_id", threads)
        table = schema.responses
        chosen = select(table.c.tenant, table.c.id).where(*_limits(extent, table, table.c.created_at)).limit(most)
        responses = [(row.tenant, row.id) for row in await connection.execute(chosen)]
        await _delete(connection, table, "id", responses)
        released += await contents.used(connection, schema.response_contents, responses)
        await _delete(connection, schema.response_contents, "id", responses)
        await contents.release(connection, released)
        if not threads and extent.tenant is not None and extent.whole:
            for source in schema.OF_A_THREAD:  # rows of threads that were deleted before they were written
                await connection.execute(delete(source).where(source.c.tenant == extent.tenant))
            await contents.release_all(connection, extent.tenant)
    return Removed(threads=Counter(tenant for tenant, _ in threads), responses=Counter(each for each, _ in responses))


async def _delete(connection: AsyncConnection, source: Table, name: str, keys: Sequence[tuple[str, str]]) -> None:
    chosen = tuple_(source.c.tenant, source.c[name]).in_(keys) if keys else false()
    await connection.execute(delete(source).where(chosen))


@contextlib.asynccontextmanager
async def overwriting(connection: AsyncConnection) -> AsyncIterator[None]:
    """What is deleted in the block is overwritten; without it SQLite leaves the words in the file's free pages."""
    if connection.dialect.name != "sqlite":
        yield
        return
    usual = (await connection.exec_driver_sql("PRAGMA secure_delete")).scalar_one()
    await connection.exec_driver_sql("PRAGMA secure_delete=ON")
    try:
        yield
    finally:
        await connection.exec_driver_sql(f"PRAGMA secure_delete={usual}")
