"""Who is to be told of a run's end, as the store keeps it: over a restart, and for whichever server is there then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, and_, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_server.runs.store import rows, schema
from agent_server.runs.store.records import RunRecord

GOING_ON = ("waiting", "running")


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """One that is to be told. id: of the message, the same at every attempt. due_at: milliseconds; not before that.
    run: as it ended, None for what is only registered."""

    tenant: str
    thread_id: str
    run_id: str
    id: str
    url: str
    attempts: int = 0
    due_at: int = 0
    run: RunRecord | None = None


async def register(connection: AsyncConnection, callback: Callback) -> None:
    row = {name: getattr(callback, name) for name in Callback.__struct_fields__ if name != "run"}
    await rows.upsert(connection, schema.webhooks, [row], ["id", "url", "attempts", "due_at"])


async def due(connection: AsyncConnection, now: int, most: int) -> Sequence[Callback]:
    """Those whose runs have ended and whose time has come, the longest due first."""
    table, runs = schema.webhooks, schema.runs
    same = and_(runs.c.tenant == table.c.tenant, runs.c.thread_id == table.c.thread_id, runs.c.id == table.c.run_id)
    query = select(table).join(runs, same).where(table.c.due_at <= now, runs.c.status.not_in(GOING_ON))
    found = (await connection.execute(query.order_by(table.c.due_at).limit(most))).all()
    return [await _with_run(connection, row) for row in found]


async def _with_run(connection: AsyncConnection, row: Row[Any]) -> Callback:
    callback = Callback(**row._mapping)
    chosen = rows.of(schema.runs, callback.tenant, callback.thread_id)
    found = await connection.execute(select(schema.runs).where(chosen, schema.runs.c.id == callback.run_id))
    return msgspec.structs.replace(callback, run=rows.run_of(found.one()))


async def claim(connection: AsyncConnection, callback: Callback, until: int) -> bool:
    """Take an attempt on oneself; nobody else makes it before `until`. False if another server did."""
    table = schema.webhooks
    mine = and_(_one(callback), table.c.attempts == callback.attempts, table.c.due_at == callback.due_at)
    changed = update(table).where(mine).values(attempts=callback.attempts + 1, due_at=until)
    return bool((await connection.execute(changed)).rowcount)


async def postpone(connection: AsyncConnection, callback: Callback, until: int) -> None:
    await connection.execute(update(schema.webhooks).where(_one(callback)).values(due_at=until))


async def release(connection: AsyncConnection, callback: Callback, until: int, now: int) -> None:
    """Give an attempt back that was claimed until `until`; what another server has claimed stays that server's."""
    mine = and_(_one(callback), schema.webhooks.c.due_at == until)
    await connection.execute(update(schema.webhooks).where(mine).values(due_at=now))


async def done(connection: AsyncConnection, callback: Callback) -> None:
    await connection.execute(delete(schema.webhooks).where(_one(callback)))


def _one(callback: Callback) -> ColumnElement[bool]:
    table = schema.webhooks
    return and_(rows.of(table, callback.tenant, callback.thread_id), table.c.run_id == callback.run_id)
