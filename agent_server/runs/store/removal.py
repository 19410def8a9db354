"""Permanent removal: by tenant or key on an operator's request (erasure), or by age (retention).

A server removes in slices, each a transaction of its own, so that other writes wait for one slice at most. An erasure
survives a restart of the server that performs it. SQLite overwrites what a slice removes; in PostgreSQL it stays in the
table's free space until a VACUUM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from agent_server.observability.audit import note
from agent_server.runs.store import contents, removal, schema
from agent_server.runs.store.connections import StoreUnavailable
from agent_server.runs.store.rows import QueryRow, now_ms, of_owners
from agent_server.runs.store.schema import erasures

T = TypeVar("T")
SLICE = 50
"""The most threads that one transaction removes."""
SLICE_SECONDS = 0.005
"""The intended duration of one transaction; the number of rows it removes is adapted to it."""
LEAST_ROWS, MOST_ROWS = 250, 2000
"""Bounds on the rows of one transaction."""
FILE_BYTES = 4 * 2**20
"""Bytes of files that one transaction removes, unless a single file is larger."""
PAUSE_SECONDS = 0.02
"""The pause between two transactions, in which others can write."""
UNFINISHED = ("waiting", "running")


class RemovalScope(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of threads and responses.

    tenant: only of this tenant. key: created with this key of the tenant, or by this subject of a token. before: last
    used before that time, in milliseconds since the epoch; a thread with an unfinished run is in use. but: not of
    these tenants.
    """

    tenant: str | None = None
    key: str | None = None
    before: int | None = None
    but: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tenant is None and self.before is None:
            raise ValueError("A scope needs a tenant or a time.")
        if self.key is not None and self.tenant is None:
            raise ValueError("A scope with a key needs the key's tenant.")

    @property
    def whole(self) -> bool:
        """Whether it covers everything of a tenant."""
        return self.key is None and self.before is None


class RemovedCounts(msgspec.Struct, kw_only=True):
    """Counts of removed threads and responses by tenant, and of rows of all tables. unfinished: (tenant, id) of threads
    that still have rows."""

    threads: Counter[str] = msgspec.field(default_factory=Counter)
    responses: Counter[str] = msgspec.field(default_factory=Counter)
    rows: int = 0
    unfinished: Sequence[tuple[str, str]] = ()

    def __bool__(self) -> bool:
        return bool(self.threads or self.responses or self.rows)

    def add(self, other: RemovedCounts) -> None:
        self.threads += other.threads
        self.responses += other.responses
        self.rows += other.rows

    def by_tenant(self) -> Mapping[str, tuple[int, int]]:
        """Return (threads, responses) by tenant."""
        return {each: (self.threads[each], self.responses[each]) for each in sorted({*self.threads, *self.responses})}


def _limits(scope: RemovalScope, source: Table, moment: ColumnElement[int]) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if scope.tenant is not None:
        conditions.append(source.c.tenant == scope.tenant)
    if scope.key is not None:
        conditions.append(source.c.key == scope.key)
    if scope.before is not None:
        conditions.append(moment < scope.before)
    if scope.but:
        conditions.append(source.c.tenant.not_in(scope.but))
    return conditions


def threads_of(
    connection: Connection, scope: RemovalScope, most: int, after: tuple[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return (tenant, id) of up to `most` threads in that order. after: start after this thread."""
    table, runs = schema.threads, schema.runs
    limits = _limits(scope, table, table.c.updated_at)
    if scope.before is not None:
        of_thread = (runs.c.tenant == table.c.tenant, runs.c.thread_id == table.c.id)
        limits.append(~exists().where(*of_thread, runs.c.status.in_(UNFINISHED)))
    keys = table.c.tenant, table.c.id
    if after is not None:
        limits.append(tuple_(*keys) > tuple_(*after))
    rows = connection.execute(select(*keys).where(*limits).order_by(*keys).limit(most))
    return [(row.tenant, row.id) for row in rows]


def count_threads(connection: Connection, scope: RemovalScope) -> int:
    """Return the number of threads in a scope."""
    table = schema.threads
    query = select(func.count()).select_from(table).where(*_limits(scope, table, table.c.updated_at))
    return int(connection.scalar(query) or 0)


def remove_some(
    connection: Connection, scope: RemovalScope, threads: Sequence[tuple[str, str]], most: int
) -> RemovedCounts:
    """Remove these threads, then responses of the scope, up to `most` rows in total.

    Threads with more rows than that are emptied in part and returned in `unfinished`. If there are no threads and
    responses left, rows that runs wrote after their thread was deleted are removed.
    """
    removed = RemovedCounts()
    with overwriting(connection):
        # Wait for runs that begin or end in these threads and lock their rows, so that their writes are removed too.
        if threads and connection.dialect.name != "sqlite":
            all_threads = schema.threads
            of_these = select(all_threads.c.id).where(of_owners(all_threads, "id", threads))
            connection.execute(of_these.order_by(all_threads.c.tenant, all_threads.c.id).with_for_update())
        if not _delete_of_threads(connection, threads, most, removed):
            removed.unfinished = tuple(threads)
            return removed
        connection.execute(delete(schema.threads).where(of_owners(schema.threads, "id", threads)))
        removed.threads = Counter(tenant for tenant, _ in threads)
        removed.rows += len(threads)
        # Files of responses are deleted first, so that a response with too many of them is selected again.
        table, uses = schema.responses, schema.response_contents
        remaining = max(1, most - removed.rows)
        query = select(table.c.tenant, table.c.id).where(*_limits(scope, table, table.c.created_at))
        responses = [(row.tenant, row.id) for row in connection.execute(query.limit(min(remaining, SLICE)))]
        if _delete_uses(connection, uses, of_owners(uses, "id", responses), remaining, removed):
            connection.execute(delete(table).where(of_owners(table, "id", responses)))
            removed.responses = Counter(tenant for tenant, _ in responses)
            removed.rows += len(responses)
        if scope.tenant is not None and scope.before is None:
            grants = schema.grants
            condition = and_(*_limits(scope, grants, grants.c.updated_at))
            removed.rows += _delete_rows(connection, grants, condition, most)
        if not removed and scope.tenant is not None and scope.whole:
            for source in schema.OF_A_THREAD:
                removed.rows += _delete_rows(connection, source, source.c.tenant == scope.tenant, most)
            contents.release_all(connection, scope.tenant)
    return removed


def _delete_of_threads(
    connection: Connection, threads: Sequence[tuple[str, str]], most: int, removed: RemovedCounts
) -> bool:
    """Delete the rows that belong to threads. Return False if `most` rows were reached before all were deleted."""
    for source in schema.OF_A_THREAD:
        if removed.rows >= most:
            return False
        condition = of_owners(source, "thread_id", threads)
        if source is schema.thread_contents:
            if not _delete_uses(connection, source, condition, most - removed.rows, removed):
                return False
        else:
            removed.rows += _delete_rows(connection, source, condition, most - removed.rows)
    return removed.rows < most


def _delete_rows(connection: Connection, source: Table, condition: ColumnElement[bool], most: int) -> int:
    """Delete up to `most` of the rows. Return the number."""
    place: ColumnElement[object] = literal_column("rowid" if connection.dialect.name == "sqlite" else "ctid")
    some = select(place).select_from(source).where(condition).limit(most)
    return connection.execute(delete(source).where(place.in_(some))).rowcount


def _delete_uses(
    connection: Connection, uses: Table, condition: ColumnElement[bool], most: int, removed: RemovedCounts
) -> bool:
    """Delete up to `most` uses of files, up to FILE_BYTES or a single larger file, and files that are no longer used.
    Return False if there are more."""
    files = schema.contents
    same = and_(files.c.tenant == uses.c.tenant, files.c.digest == uses.c.digest)
    query = select(*uses.primary_key, func.length(files.c.content).label("size")).outerjoin(files, same)
    rows = connection.execute(query.where(condition).limit(min(most, SLICE) + 1)).all()
    total, count = 0, 0
    while count < min(len(rows), SLICE) and (not count or total < FILE_BYTES):
        total += rows[count].size or 0
        count += 1
    if count:
        keys = [
            and_(*(key == value for key, value in zip(uses.primary_key, row, strict=False))) for row in rows[:count]
        ]
        connection.execute(delete(uses).where(or_(*keys)))
        contents.release(connection, sorted({(row.tenant, row.digest) for row in rows[:count]}))
        removed.rows += count
    return count == len(rows)


class Writes(Protocol):
    """Runs `work` on the database in a transaction of its own."""

    async def __call__(self, work: Callable[[Connection], T], /) -> T: ...


async def remove_all(
    write: Writes,
    scope: RemovalScope,
    *,
    prepare: Callable[[Sequence[tuple[str, str]]], Awaitable[None]] | None = None,
    record: Callable[[Connection, RemovedCounts], None] | None = None,
    report: Callable[[RemovedCounts], Awaitable[None]] | None = None,
) -> RemovedCounts:
    """Remove everything in a scope, in transactions of about SLICE_SECONDS with pauses in which others can write.

    prepare: called with the threads that are removed next. record: called in each transaction with the removals so far;
    report: the same after each transaction. An interrupted removal keeps what it has done, and the same call removes
    the rest.
    """
    removed, most, threads = RemovedCounts(), LEAST_ROWS, list[tuple[str, str]]()
    last: tuple[str, str] | None = None  # the next slice starts after it, so threads that stay are read only once

    def work(connection: Connection) -> tuple[RemovedCounts, float]:
        started = time.perf_counter()
        some = remove_some(connection, scope, threads, most)
        if some and record is not None:
            so_far = RemovedCounts()
            so_far.add(removed)
            so_far.add(some)
            record(connection, so_far)
        return some, time.perf_counter() - started

    while True:
        if not threads:
            threads = await write(partial(threads_of, scope=scope, most=min(SLICE, most), after=last))
            last = threads[-1] if threads else None
            if prepare is not None:
                await prepare(threads)
        some, seconds = await write(work)
        if not some:
            return removed
        removed.add(some)
        threads = list(some.unfinished)
        if report is not None:
            await report(removed)
        most = round(most * min(2.0, max(0.25, SLICE_SECONDS / max(seconds, 1e-6))))
        most = min(MOST_ROWS, max(LEAST_ROWS, most))
        await asyncio.sleep(max(PAUSE_SECONDS, seconds))


@contextlib.contextmanager
def overwriting(connection: Connection) -> Iterator[None]:
    """Overwrite what is deleted in the block; otherwise SQLite leaves the text in the file's free pages."""
    if connection.dialect.name != "sqlite":
        yield
        return
    usual = connection.exec_driver_sql("PRAGMA secure_delete").scalar_one()
    connection.exec_driver_sql("PRAGMA secure_delete=ON")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA secure_delete={usual}")


KEEP_MILLISECONDS = 7 * 24 * 3600 * 1000
"""How long a finished erasure is listed."""


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The removal of all threads and responses of a tenant, or of those that one of its keys created.

    by: who requested it. threads, responses: how many were removed so far. total: the number of threads when it began.
    created_at, ended_at: milliseconds since the epoch; `ended_at` is None while it is unfinished.
    """

    id: str
    tenant: str
    key: str | None = None
    by: str = ""
    threads: int = 0
    responses: int = 0
    total: int = 0
    created_at: int = 0
    ended_at: int | None = None

    @property
    def scope(self) -> RemovalScope:
        return RemovalScope(tenant=self.tenant, key=self.key)


def _erasure_of(row: QueryRow) -> Erasure:
    return Erasure(**{name: getattr(row, name) for name in Erasure.__struct_fields__})


def begin_erasure(connection: Connection, erasure: Erasure, owner: int) -> Erasure:
    """Record an erasure with the number of its threads. If an unfinished one has the same scope, return that
    instead."""
    table = erasures
    connection.execute(delete(table).where(table.c.ended_at < erasure.created_at - KEEP_MILLISECONDS))
    same = (table.c.tenant == erasure.tenant, table.c.key.is_not_distinct_from(erasure.key), table.c.ended_at.is_(None))
    if row := connection.execute(select(table).where(*same).limit(1)).first():
        return _erasure_of(row)
    total = removal.count_threads(connection, erasure.scope)
    erasure = msgspec.structs.replace(erasure, total=total)
    connection.execute(insert(table).values(**msgspec.structs.asdict(erasure), owner=owner))
    return erasure


def advance_erasure(
    connection: Connection, erasure: Erasure, removed: RemovedCounts, ended_at: int | None = None
) -> None:
    """Add the counts of `removed` to those of `erasure` and record them, with the time at which it ended, if it has."""
    counts = {
        "threads": erasure.threads + removed.threads.total(),
        "responses": erasure.responses + removed.responses.total(),
    }
    connection.execute(update(erasures).where(erasures.c.id == erasure.id).values(**counts, ended_at=ended_at))


def find_erasure(connection: Connection, id: str) -> Erasure | None:
    row = connection.execute(select(erasures).where(erasures.c.id == id)).first()
    return None if row is None else _erasure_of(row)


def recent_erasures(connection: Connection) -> list[Erasure]:
    """Return erasures that are unfinished or ended recently, latest first."""
    query = select(erasures).order_by(erasures.c.created_at.desc(), erasures.c.id).limit(100)
    return [_erasure_of(row) for row in connection.execute(query)]


def take_over_erasures(connection: Connection, dead: Sequence[int], owner: int) -> list[Erasure]:
    """Make `owner` the owner of the unfinished erasures of dead servers, and return them."""
    these: tuple[ColumnElement[bool], ...] = (erasures.c.ended_at.is_(None), erasures.c.owner.in_(dead))
    rows = connection.execute(update(erasures).where(*these).values(owner=owner).returning(erasures))
    return [_erasure_of(row) for row in rows]


logger = logging.getLogger("agent_server.store")
DAY_MILLISECONDS = 24 * 3600 * 1000


class Remover(Protocol):
    async def remove(self, scope: RemovalScope) -> RemovedCounts:
        """Remove everything in a scope, in slices."""


class Retention:
    """Removes threads and responses that have not been used for a number of days.

    days: for tenants without a value of their own; 0 keeps everything. tenants: days by tenant. every: seconds between
    two sweeps. observe: called after every sweep with its removals, or None if the store could not be used.
    """

    def __init__(
        self,
        store: Remover,
        days: float,
        tenants: Mapping[str, float],
        every: float,
        observe: Callable[[RemovedCounts | None], None],
    ) -> None:
        self._store = store
        self._days = days
        self._tenants = dict(tenants)
        self._every = every
        self._observe = observe

    @property
    def is_enabled(self) -> bool:
        return any((self._days, *self._tenants.values()))

    async def run(self) -> None:
        """Sweep repeatedly. If the store cannot be used, the next sweep tries again."""
        while True:
            try:
                self._observe(await self.sweep())
            except StoreUnavailable as error:
                logger.warning("Unused threads could not be removed: %s", error)
                self._observe(None)
            await asyncio.sleep(self._every)

    async def sweep(self) -> RemovedCounts:
        """Remove everything that is old enough now."""
        now, removed = now_ms(), RemovedCounts()
        scopes = [
            RemovalScope(tenant=tenant, before=now - round(days * DAY_MILLISECONDS))
            for tenant, days in self._tenants.items()
            if days
        ]
        if self._days:
            scopes.append(RemovalScope(before=now - round(self._days * DAY_MILLISECONDS), but=tuple(self._tenants)))
        for scope in scopes:
            removed.add(await self._store.remove(scope))
        for tenant, (threads, responses) in removed.by_tenant().items():
            note("threads.removed", tenant=tenant, threads=threads, responses=responses, reason="retention")
        if removed:
            counts = removed.threads.total(), removed.responses.total()
            logger.info("Removed %d threads and %d responses whose retention had ended.", *counts)
        return removed
