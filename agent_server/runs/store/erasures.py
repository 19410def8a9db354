"""Erasures that an operator asked for: how far they are, over a restart of the server that carries them out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from agent_server.runs.store import removal
from agent_server.runs.store.removal import Extent, Removed
from agent_server.runs.store.rows import FoundRow
from agent_server.runs.store.schema import erasures

KEEP_MILLISECONDS = 7 * 24 * 3600 * 1000
"""How long an erasure that ended is listed."""


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """All threads and responses of a tenant, or those that one of its keys began.

    by: who asked for it. threads, responses: how many were removed so far. total: how many threads there were when it
    began. created_at, ended_at: milliseconds since the epoch; `ended_at` is None while it goes on.
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
    def extent(self) -> Extent:
        return Extent(tenant=self.tenant, key=self.key)


def _erasure_of(row: FoundRow) -> Erasure:
    return Erasure(**{name: getattr(row, name) for name in Erasure.__struct_fields__})


def begin(connection: Connection, erasure: Erasure, owner: int) -> Erasure:
    """Record an erasure with the number of its threads; the one of the same extent that has not ended, if there is
    one."""
    table = erasures
    connection.execute(delete(table).where(table.c.ended_at < erasure.created_at - KEEP_MILLISECONDS))
    same = (table.c.tenant == erasure.tenant, table.c.key.is_not_distinct_from(erasure.key), table.c.ended_at.is_(None))
    if row := connection.execute(select(table).where(*same).limit(1)).first():
        return _erasure_of(row)
    total = removal.count_threads(connection, erasure.extent)
    erasure = msgspec.structs.replace(erasure, total=total)
    connection.execute(insert(table).values(**msgspec.structs.asdict(erasure), owner=owner))
    return erasure


def advance(connection: Connection, erasure: Erasure, removed: Removed, ended_at: int | None = None) -> None:
    """Record what was removed besides what `erasure` has, and that it ended, if it did."""
    counts = {
        "threads": erasure.threads + removed.threads.total(),
        "responses": erasure.responses + removed.responses.total(),
    }
    connection.execute(update(erasures).where(erasures.c.id == erasure.id).values(**counts, ended_at=ended_at))


def find(connection: Connection, id: str) -> Erasure | None:
    row = connection.execute(select(erasures).where(erasures.c.id == id)).first()
    return None if row is None else _erasure_of(row)


def recent(connection: Connection) -> list[Erasure]:
    """Those that go on or ended lately, latest first."""
    query = select(erasures).order_by(erasures.c.created_at.desc(), erasures.c.id).limit(100)
    return [_erasure_of(row) for row in connection.execute(query)]


def take_over(connection: Connection, dead: Sequence[int], owner: int) -> list[Erasure]:
    """Make the erasures of servers that ended this one's."""
    these: tuple[ColumnElement[bool], ...] = (erasures.c.ended_at.is_(None), erasures.c.owner.in_(dead))
    rows = connection.execute(update(erasures).where(*these).values(owner=owner).returning(erasures))
    return [_erasure_of(row) for row in rows]
