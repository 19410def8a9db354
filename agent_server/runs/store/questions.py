"""What the store has of interrupts: what was asked, what was answered, and what came of it, without larger files.

Each function is one part of a transaction, and repeatable (see `Writer`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from agent_server.runs.store import contents, rows, schema
from agent_server.runs.store.records import AskedPerson, Conclusion, InterruptAnswer, InterruptRecord
from agent_server.runs.store.rows import FoundRow, bound, decoded, encoded, of, of_bound

BODIES = ("interrupt", "call", "answer", "result")
"""Columns that are without their larger files, which `contents` has."""
_ALL = select(schema.interrupts).where(of_bound(schema.interrupts)).order_by(schema.interrupts.c.id)


def ask(connection: Connection, ended: Conclusion) -> None:
    """What a run waits for at its end."""
    asked = [_row(connection, ended, each) for each in ended.interrupts]
    rows.upsert(connection, schema.interrupts, asked, ["interrupt", "call", "status"])


def _row(connection: Connection, ended: Conclusion, asked: AskedPerson) -> dict[str, object]:
    key = {"tenant": ended.tenant, "thread_id": ended.thread_id, "id": asked["interrupt"].id, "run_id": ended.run_id}
    said = {"interrupt": encoded(asked["interrupt"]), "call": encoded(asked["call"])}
    return {**key, **_kept(connection, ended.tenant, ended.thread_id, said), "status": "open"}


def _kept(connection: Connection, tenant: str, thread_id: str, said: Mapping[str, str | None]) -> dict[str, str | None]:
    """Columns without their larger files, which are the thread's from now on."""
    made = {name: contents.parted(text) for name, text in said.items() if text is not None}
    found = {digest: file for each in made.values() for digest, file in each.contents.items()}
    contents.keep(connection, schema.thread_contents, tenant, thread_id, found)
    return {name: made[name].text if name in made else None for name in said}


def claim(
    connection: Connection, tenant: str, thread_id: str, answers: Mapping[str, InterruptAnswer], run_id: str
) -> bool:
    """Turn open interrupts into claimed ones, all or none."""
    table = schema.interrupts
    of_thread = of(table, tenant, thread_id)
    still_open = select(table.c.id).where(of_thread, table.c.status == "open", table.c.id.in_(list(answers)))
    if len(connection.execute(still_open.with_for_update()).all()) != len(answers):
        return False
    for id, answer in answers.items():
        said = _kept(connection, tenant, thread_id, {"answer": encoded(answer)})
        values = {"status": "claimed", **said, "resumed_by": run_id}
        connection.execute(update(table).where(of_thread, table.c.id == id).values(values))
    return True


def expire(connection: Connection, tenant: str, thread_id: str, ids: Collection[str], at: str) -> None:
    """Let these open interrupts expire at that time (ISO 8601): nobody is asked them any more."""
    table = schema.interrupts
    here = (of(table, tenant, thread_id), table.c.status == "open", table.c.id.in_(list(ids)))
    for row in connection.execute(select(table.c.id, table.c.interrupt).where(*here).with_for_update()).all():
        changed = encoded({**decoded(row.interrupt), "expiresAt": at})
        connection.execute(update(table).where(*here, table.c.id == row.id).values(interrupt=changed))


def record_result(
    connection: Connection, tenant: str, thread_id: str, id: str, content: object, message_id: str | None
) -> None:
    """Keep what an answered interrupt's call gave."""
    table = schema.interrupts
    said = _kept(connection, tenant, thread_id, {"result": encoded(content)})
    values = {"status": "answered", **said, "result_message_id": message_id}
    connection.execute(update(table).where(of(table, tenant, thread_id), table.c.id == id).values(values))


def load(connection: Connection, tenant: str, thread_id: str) -> tuple[InterruptRecord, ...]:
    found = connection.execute(_ALL, bound(tenant, thread_id)).all()
    if not found:
        return ()
    texts = [getattr(row, name) or "" for row in found for name in BODIES]
    whole = contents.whole(connection, tenant, texts)
    width = len(BODIES)
    return tuple(_record(row, whole[at * width : (at + 1) * width]) for at, row in enumerate(found))


def _record(row: FoundRow, bodies: list[str]) -> InterruptRecord:
    """bodies: the row's columns of that name, "" for one that has nothing."""
    said: dict[str, Any] = {name: decoded(text or None) for name, text in zip(BODIES, bodies, strict=True)}
    return InterruptRecord(
        id=row.id,
        thread_id=row.thread_id,
        run_id=row.run_id,
        status=row.status,
        result_message_id=row.result_message_id,
        resumed_by=row.resumed_by,
        **said,
    )
