"""What the store has of interrupts: what was asked, what was answered, and what came of it, without larger files.

Each function is one part of a transaction, and repeatable (see `writer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_server.runs.store import contents, rows, schema
from agent_server.runs.store.records import AskedPerson, Conclusion, InterruptAnswer, InterruptRecord
from agent_server.runs.store.rows import FoundRow, bound, decoded, encoded, of, of_bound

BODIES = ("interrupt", "call", "answer", "result")
"""Columns that are without their larger files, which `contents` has."""
_ALL = select(schema.interrupts).where(of_bound(schema.interrupts)).order_by(schema.interrupts.c.id)


async def ask(connection: AsyncConnection, ended: Conclusion) -> None:
    """What a run waits for at its end."""
    asked = [await _row(connection, ended, each) for each in ended.interrupts]
    await rows.upsert(connection, schema.interrupts, asked, ["interrupt", "call", "status"])


async def _row(connection: AsyncConnection, ended: Conclusion, asked: AskedPerson) -> dict[str, object]:
    key = {"tenant": ended.tenant, "thread_id": ended.thread_id, "id": asked["interrupt"].id, "run_id": ended.run_id}
    said = {"interrupt": encoded(asked["interrupt"]), "call": encoded(asked["call"])}
    return {**key, **await _kept(connection, ended.tenant, ended.thread_id, said), "status": "open"}


async def _kept(
    connection: AsyncConnection, tenant: str, thread_id: str, said: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Columns without their larger files, which are the thread's from now on."""
    made = {name: contents.parted(text) for name, text in said.items() if text is not None}
    found = {digest: file for each in made.values() for digest, file in each.contents.items()}
    await contents.keep(connection, schema.thread_contents, tenant, thread_id, found)
    return {name: made[name].text if name in made else None for name in said}


async def claim(
    connection: AsyncConnection, tenant: str, thread_id: str, answers: Mapping[str, InterruptAnswer], run_id: str
) -> bool:
    """Turn open interrupts into claimed ones, all or none."""
    table = schema.interrupts
    of_thread = of(table, tenant, thread_id)
    still_open = select(table.c.id).where(of_thread, table.c.status == "open", table.c.id.in_(list(answers)))
    if len((await connection.execute(still_open.with_for_update())).all()) != len(answers):
        return False
    for id, answer in answers.items():
        said = await _kept(connection, tenant, thread_id, {"answer": encoded(answer)})
        values = {"status": "claimed", **said, "resumed_by": run_id}
        await connection.execute(update(table).where(of_thread, table.c.id == id).values(values))
    return True


async def record_result(
    connection: AsyncConnection, tenant: str, thread_id: str, id: str, content: object, message_id: str | None
) -> None:
    """Keep what an answered interrupt's call gave."""
    table = schema.interrupts
    said = await _kept(connection, tenant, thread_id, {"result": encoded(content)})
    values = {"status": "answered", **said, "result_message_id": message_id}
    await connection.execute(update(table).where(of(table, tenant, thread_id), table.c.id == id).values(values))


async def load(connection: AsyncConnection, tenant: str, thread_id: str) -> tuple[InterruptRecord, ...]:
    found = (await connection.execute(_ALL, bound(tenant, thread_id))).all()
    if not found:
        return ()
    texts = [getattr(row, name) or "" for row in found for name in BODIES]
    whole = await contents.whole(connection, tenant, texts)
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
