"""Responses and conversations of OpenAI's wire, one row each. Their age counts from the last change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, select, update

from agent_server.runs.store import contents, rows
from agent_server.runs.store.rows import decoded, encoded, now_ms
from agent_server.runs.store.schema import response_contents as uses
from agent_server.runs.store.schema import responses as table


def save(connection: Connection, tenant: str, id: str, body: object, key: str) -> None:
    text, files = contents.parted(encoded(body) or "null")
    row = {"tenant": tenant, "id": id, "body": text, "created_at": now_ms(), "key": key}
    rows.upsert(connection, table, [row], ["body", "created_at"])
    contents.keep_only(connection, uses, tenant, id, files)


def find(connection: Connection, tenant: str, id: str) -> Any:
    text = connection.scalar(select(table.c.body).where(*_with_id(tenant, id)))
    return decoded(contents.whole_one(connection, tenant, text))


def newest(connection: Connection, tenant: str, prefix: str, most: int, most_bytes: int) -> list[Any]:
    """The bodies of those whose ids begin with the prefix, that changed last: the first one, and those after it while
    all together have at most `most_bytes`. They are read one at a time, so that no others are in memory."""
    begins = table.c.id.startswith(prefix, autoescape=True)
    latest = select(table.c.id).where(table.c.tenant == tenant, begins).order_by(table.c.created_at.desc())
    bodies: list[Any] = []
    size = 0
    for id in connection.scalars(latest.limit(most)).all():
        text = connection.scalar(select(table.c.body).where(*_with_id(tenant, id)))
        whole = contents.whole_one(connection, tenant, text)
        size += len(whole or "")
        if bodies and size > most_bytes:
            break
        bodies.append(decoded(whole))
    return bodies


def put(connection: Connection, tenant: str, id: str, change: Callable[[Any], object]) -> Any:
    """Replace a stored body by `change(body)`. Return the new body, or None if there is none stored."""
    here = _with_id(tenant, id)
    # Written before it is read, so that other servers wait from here on: for the row or, with SQLite, for the file.
    if not connection.execute(update(table).where(*here).values(created_at=now_ms())).rowcount:
        return None
    changed = change(find(connection, tenant, id))
    text, files = contents.parted(encoded(changed) or "null")
    connection.execute(update(table).where(*here).values(body=text))
    contents.keep_only(connection, uses, tenant, id, files)
    return changed


def remove(connection: Connection, tenant: str, id: str) -> bool:
    existed = bool(connection.execute(delete(table).where(*_with_id(tenant, id))).rowcount)
    contents.keep_only(connection, uses, tenant, id, {})
    return existed


def _with_id(tenant: str, id: str) -> tuple[ColumnElement[bool], ...]:
    return table.c.tenant == tenant, table.c.id == id
