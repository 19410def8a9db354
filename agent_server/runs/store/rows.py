"""SQL statements that the store's modules share, and conversion between rows and records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Table, and_, bindparam, false, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from adapters.errors import RequestError
from agent_server.runs.store import schema
from agent_server.runs.store.records import FeedbackRecord, RunRecord, ThreadRecord

QueryRow = Row[*tuple[object, ...]]
"""A row of any query."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def encoded(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def of(table: Table, tenant: str, thread_id: str) -> ColumnElement[bool]:
    """Return the condition for the rows of one thread."""
    thread = table.c.id if table is schema.threads else table.c.thread_id
    return and_(table.c.tenant == tenant, thread == thread_id)


def of_owners(table: Table, column: str, owners: Sequence[tuple[str, str]]) -> ColumnElement[bool]:
    """Return the condition for the rows of threads or responses. owners: their tenants and ids. column: of the ids.

    It has the form `tenant = ? AND id IN (...)`, for which SQLite seeks in the index; for `(tenant, id) IN (...)` it
    reads the whole index.
    """
    ids: dict[str, list[str]] = {}
    for tenant, owner in owners:
        ids.setdefault(tenant, []).append(owner)
    conditions = [and_(table.c.tenant == tenant, table.c[column].in_(some)) for tenant, some in ids.items()]
    return or_(*conditions) if conditions else false()


def of_bound(table: Table) -> ColumnElement[bool]:
    """Return the condition of `of` with bind parameters, which `bound` makes, for statements that are built once.

    A run's beginning and end use such statements: building one takes several times as long as SQLite takes to execute
    it.
    """
    thread = table.c.id if table is schema.threads else table.c.thread_id
    return and_(table.c.tenant == bindparam("of_tenant"), thread == bindparam("of_thread"))


def bound(tenant: str, thread_id: str, **more: Any) -> dict[str, Any]:
    return {"of_tenant": tenant, "of_thread": thread_id, **more}


def checked_id(value: str, param: str) -> str:
    """Return an id. Raises RequestError if it contains NUL, which PostgreSQL's text type cannot contain."""
    if "\x00" in value:
        raise RequestError("invalid_request", "An id may not contain NUL.", param)
    return value


@lru_cache(maxsize=64)
def upserting(dialect: str, table: Table, update: tuple[str, ...]) -> Any:
    """Build an insert that updates the named columns, if any, where the primary key already exists."""
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement: Any = insert(table)
    keys = [column.name for column in table.primary_key]
    if not update:
        return statement.on_conflict_do_nothing(index_elements=keys)
    return statement.on_conflict_do_update(
        index_elements=keys, set_={name: statement.excluded[name] for name in update}
    )


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], update: Sequence[str]) -> None:
    """Insert rows; where the primary key exists, update the named columns."""
    if rows:
        statement = upserting(connection.dialect.name, table, tuple(update))
        connection.execute(statement, [dict(row) for row in rows])


def thread_of(row: QueryRow) -> ThreadRecord:
    return ThreadRecord(
        id=row.id,
        name=row.name,
        agent_id=row.agent_id,
        archived=row.archived,
        created_at=row.created_at,
        updated_at=row.updated_at,
        metadata=decoded(row.metadata),
    )


def run_of(row: QueryRow) -> RunRecord:
    return RunRecord(
        id=row.id,
        thread_id=row.thread_id,
        agent=row.agent,
        status=row.status,
        parent_run_id=row.parent_run_id,
        error=row.error,
        outcome=decoded(row.outcome),
        usage=decoded(row.usage),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def feedback_of(row: QueryRow) -> FeedbackRecord:
    return FeedbackRecord(
        message_id=row.message_id,
        score=row.score,
        comment=row.comment,
        position=None if row.position == schema.WHOLE_MESSAGE else row.position,
        created_at=row.created_at,
    )
