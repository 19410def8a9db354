"""Interrupts in the store: questions, answers and results, without their larger files.

Each function is part of a transaction and may be repeated (see `Writer`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from agent_server.runs.store import contents, rows, schema
from agent_server.runs.store.records import Conclusion, InterruptAnswer, InterruptRecord
from agent_server.runs.store.rows import bound, decoded, encoded, of, of_bound

BODIES = ("interrupt", "call", "answer", "result")
"""Columns whose larger files are in `contents`."""
_ALL = select(schema.interrupts).where(of_bound(schema.interrupts)).order_by(schema.interrupts.c.id)


def ask(connection: Connection, ended: Conclusion) -> None:
    """Store the interrupts that a run waits for at its end."""
    interrupts = []
    for question in ended.interrupts:
        interrupt = question["interrupt"]
        key = {"tenant": ended.tenant, "thread_id": ended.thread_id, "id": interrupt.id, "run_id": ended.run_id}
        columns = {"interrupt": encoded(interrupt), "call": encoded(question["call"])}
        stored = _without_files(connection, ended.tenant, ended.thread_id, columns)
        interrupts.append({**key, **stored, "status": "open"})
    rows.upsert(connection, schema.interrupts, interrupts, ["interrupt", "call", "status"])


def _without_files(
    connection: Connection, tenant: str, thread_id: str, columns: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Take the larger files out of columns and store them as the thread's."""
    parted = {name: contents.parted(text) for name, text in columns.items() if text is not None}
    files = {digest: file for each in parted.values() for digest, file in each.contents.items()}
    contents.keep(connection, schema.thread_contents, tenant, thread_id, files)
    return {name: parted[name].text if name in parted else None for name in columns}


def claim(
    connection: Connection, tenant: str, thread_id: str, answers: Mapping[str, InterruptAnswer], run_id: str
) -> bool:
    """Mark open interrupts as claimed with their answers, all or none. Return whether it succeeded."""
    table = schema.interrupts
    of_thread = of(table, tenant, thread_id)
    still_open = select(table.c.id).where(of_thread, table.c.status == "open", table.c.id.in_(list(answers)))
    if len(connection.execute(still_open.with_for_update()).all()) != len(answers):
        return False
    for id, answer in answers.items():
        columns = _without_files(connection, tenant, thread_id, {"answer": encoded(answer)})
        values = {"status": "claimed", **columns, "resumed_by": run_id}
        connection.execute(update(table).where(of_thread, table.c.id == id).values(values))
    return True


def expire(connection: Connection, tenant: str, thread_id: str, ids: Collection[str], at: str) -> None:
    """Mark these open interrupts as expired at `at` (ISO 8601), so that they are no longer asked."""
    table = schema.interrupts
    here = (of(table, tenant, thread_id), table.c.status == "open", table.c.id.in_(list(ids)))
    for row in connection.execute(select(table.c.id, table.c.interrupt).where(*here).with_for_update()).all():
        changed = encoded({**decoded(row.interrupt), "expiresAt": at})
        connection.execute(update(table).where(*here, table.c.id == row.id).values(interrupt=changed))


def record_result(
    connection: Connection, tenant: str, thread_id: str, id: str, content: object, message_id: str | None
) -> None:
    """Store the result of an answered interrupt's call."""
    table = schema.interrupts
    columns = _without_files(connection, tenant, thread_id, {"result": encoded(content)})
    values = {"status": "answered", **columns, "result_message_id": message_id}
    connection.execute(update(table).where(of(table, tenant, thread_id), table.c.id == id).values(values))


def load(connection: Connection, tenant: str, thread_id: str) -> tuple[InterruptRecord, ...]:
    interrupts = connection.execute(_ALL, bound(tenant, thread_id)).all()
    if not interrupts:
        return ()
    texts = [getattr(row, name) or "" for row in interrupts for name in BODIES]
    whole = contents.whole(connection, tenant, texts)
    width = len(BODIES)
    records = []
    for place, row in enumerate(interrupts):
        texts_of_row = whole[place * width : (place + 1) * width]
        columns: dict[str, Any] = {name: decoded(text or None) for name, text in zip(BODIES, texts_of_row, strict=True)}
        records.append(
            InterruptRecord(
                id=row.id,
                thread_id=row.thread_id,
                run_id=row.run_id,
                status=row.status,
                result_message_id=row.result_message_id,
                resumed_by=row.resumed_by,
                **columns,
            )
        )
    return tuple(records)
