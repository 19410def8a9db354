"""Pending webhook deliveries in the store, which any server can make, also after a restart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, select, update

from agent_server.runs.store import rows, schema
from agent_server.runs.store.records import RunRecord

UNFINISHED = ("waiting", "running")


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook delivery. id: the message id, the same at every attempt. due_at: the earliest time of the next attempt,
    in milliseconds since the epoch. run: the finished run; None while it is unfinished."""

    tenant: str
    thread_id: str
    run_id: str
    id: str
    url: str
    attempts: int = 0
    due_at: int = 0
    run: RunRecord | None = None


def register(connection: Connection, callback: Callback) -> None:
    row = {name: getattr(callback, name) for name in Callback.__struct_fields__ if name != "run"}
    rows.upsert(connection, schema.webhooks, [row], ["id", "url", "attempts", "due_at"])


def due(connection: Connection, now: int, most: int) -> Sequence[Callback]:
    """Return deliveries of finished runs that are due, the longest due first."""
    table, runs = schema.webhooks, schema.runs
    same = and_(runs.c.tenant == table.c.tenant, runs.c.thread_id == table.c.thread_id, runs.c.id == table.c.run_id)
    query = select(table).join(runs, same).where(table.c.due_at <= now, runs.c.status.not_in(UNFINISHED))
    due_rows = connection.execute(query.order_by(table.c.due_at).limit(most)).all()
    callbacks = []
    for row in due_rows:
        of_thread = rows.of(runs, row.tenant, row.thread_id)
        run = connection.execute(select(runs).where(of_thread, runs.c.id == row.run_id)).one()
        callbacks.append(Callback(**row._mapping, run=rows.run_of(run)))
    return callbacks


def claim(connection: Connection, callback: Callback, until: int) -> bool:
    """Claim the next attempt until a time in milliseconds. Return False if another server was first."""
    table = schema.webhooks
    mine = and_(_one(callback), table.c.attempts == callback.attempts, table.c.due_at == callback.due_at)
    changed = update(table).where(mine).values(attempts=callback.attempts + 1, due_at=until)
    return bool(connection.execute(changed).rowcount)


def postpone(connection: Connection, callback: Callback, until: int) -> None:
    connection.execute(update(schema.webhooks).where(_one(callback)).values(due_at=until))


def release(connection: Connection, callback: Callback, until: int, now: int) -> None:
    """Give up an attempt that was claimed until `until`. A claim of another server is not affected."""
    mine = and_(_one(callback), schema.webhooks.c.due_at == until)
    connection.execute(update(schema.webhooks).where(mine).values(due_at=now))


def done(connection: Connection, callback: Callback) -> None:
    connection.execute(delete(schema.webhooks).where(_one(callback)))


def _one(callback: Callback) -> ColumnElement[bool]:
    table = schema.webhooks
    return and_(rows.of(table, callback.tenant, callback.thread_id), table.c.run_id == callback.run_id)
