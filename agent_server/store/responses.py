"""Responses and conversations of OpenAI's wire: one row each, whose age is that of its last change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_server.store import rows
from agent_server.store.rows import decoded, encoded, now_ms
from agent_server.store.schema import responses as table


async def save(connection: AsyncConnection, tenant: str, id: str, body: object, key: str) -> None:
    row = {"tenant": tenant, "id": id, "body": encoded(body), "created_at": now_ms(), "key": key}
    await rows.upsert(connection, table, [row], ["body", "created_at"])


async def find(connection: AsyncConnection, tenant: str, id: str) -> Any:
    return decoded(await connection.scalar(select(table.c.body).where(*_here(tenant, id))))


async def put(connection: AsyncConnection, tenant: str, id: str, change: Callable[[Any], object]) -> Any:
    """What `change` made of what was kept, and is kept now; None if nothing was."""
    here = _here(tenant, id)
    # written before it is read: other servers wait from here on, for the row or, with SQLite, for the file
    if not (await connection.execute(update(table).where(*here).values(created_at=now_ms()))).rowcount:
        return None
    changed = change(await find(connection, tenant, id))
    await connection.execute(update(table).where(*here).values(body=encoded(changed)))
    return changed


async def remove(connection: AsyncConnection, tenant: str, id: str) -> bool:
    return bool((await connection.execute(delete(table).where(*_here(tenant, id)))).rowcount)


def _here(tenant: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return table.c.tenant == tenant, table.c.id == id
