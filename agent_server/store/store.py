"""The store of threads, on SQLite or PostgreSQL."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import and_, delete, func, or_, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import RequestError
from agent_server.audit import note
from agent_server.ids import new_id
from agent_server.store import messages as kept
from agent_server.store import recording, rows, schema
from agent_server.store.database import is_memory, make_engine, make_file, make_owners, with_driver
from agent_server.store.faults import Health, fault_of
from agent_server.store.migrate import migrate
from agent_server.store.owners import new_owner
from agent_server.store.records import (
    Conclusion,
    FeedbackRecord,
    InterruptRecord,
    KeptRecord,
    Removal,
    RunRecord,
    RunStatus,
    ThreadRecord,
    ThreadState,
)
from agent_server.store.rows import checked_id, decoded, encoded, now_ms, of
from agent_server.store.thread import LoopThread
from agent_server.store.writer import PATIENCE_SECONDS, Writer, patiently

T = TypeVar("T")
PAGE = 100
OPEN_SECONDS = 20.0
END_PATIENCE_SECONDS = 20.0
"""How long the ending of a run waits for a database that is locked or out of reach."""
WATCH_SECONDS = 2.0
PROBE_BYTES = 256 * 1024


async def _probe(connection: AsyncConnection) -> None:
    """A write that leaves nothing behind. It is as large as a long message: a database that has room for a changed row
    alone still refuses what it is there for."""
    row = {"tenant": "", "id": f"probe-{secrets.token_hex(8)}", "body": "x" * PROBE_BYTES, "created_at": 0}
    await connection.execute(schema.responses.insert().values(row))
    await connection.execute(schema.responses.delete().where(schema.responses.c.id == row["id"]))


async def _look(connection: AsyncConnection) -> None:
    await connection.exec_driver_sql("SELECT 1")


class Store:
    """Everything that is kept of threads. Open it before use; every method is one transaction.

    url: SQLAlchemy's, with an asynchronous driver: `sqlite+aiosqlite:///path`, `sqlite+aiosqlite:///:memory:` or
    `postgresql+asyncpg://...` (plain `sqlite://` and `postgresql://` get theirs).
    """

    def __init__(self, url: str) -> None:
        self._url = with_driver(url)
        self._memory = is_memory(self._url)
        self.owner = new_owner()
        self._engine = make_engine(self._url, self._memory)
        self._owners = make_owners(self._url, self._memory, self._engine)
        self._file = None if self._memory else make_file(self._url)
        self._health = Health()
        self._writer = Writer(self._engine, self._health, self._check)
        self._watching: asyncio.Task[None] | None = None
        self._thread = LoopThread("store")

    @property
    def place(self) -> str:
        """Its URL, for people: without the password."""
        return make_url(self._url).render_as_string(hide_password=True)

    @property
    def fault(self) -> str | None:
        """Why the database cannot be used now; None if nothing is known to be wrong with it."""
        return self._health.fault

    async def open(self) -> None:
        """Make or migrate the database; record the runs of servers that died as broken. StoreUnavailable if it cannot
        be used."""
        self._thread.start()
        await self._thread.run(self._open)
        await self.find_broken()

    async def _open(self) -> None:
        if self._memory:
            async with self._engine.begin() as connection:
                await connection.run_sync(schema.metadata.create_all)
        else:
            if self._file is not None:
                await asyncio.to_thread(self._file.make)
            await patiently(self._prepare, OPEN_SECONDS)
        await self._owners.claim(self.owner)
        self._writer.start()
        if not self._memory:
            self._watching = asyncio.create_task(self._watch(), name="store watch")

    async def _prepare(self) -> None:
        if self._file is not None:
            await self._file.prove_sound()
        await migrate(self._engine)

    async def _watch(self) -> None:
        """Notice what is wrong while nothing is asked of the database, and that it works again."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                self._check()
                if self.fault is not None:
                    await self._writer.write(_probe, 0.0)
                elif self._file is None:
                    await self._reading(_look)
            except Exception as error:
                self._health.failed(fault_of(error) or str(error))
                if self._file is not None and self._file.lost:
                    await self._file.rescue(self._engine)

    def _check(self) -> None:
        """StoreUnavailable where what is written would be lost."""
        if self._file is not None:
            self._file.check()

    async def close(self) -> None:
        """Write what is waiting and let go of the database. Safe to call twice."""
        if self._thread.running:
            await self._thread.run(self._close)
            await self._thread.stop()

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._writer.stop()
        if self._file is not None:
            await self._file.close()
        await self._owners.release()
        await self._engine.dispose()

    async def begin_run(
        self,
        tenant: str,
        thread_id: str,
        run_id: str,
        *,
        agent: str = "default",
        parent_run_id: str | None = None,
        messages: Sequence[Mapping[str, object]] = (),
        edits: bool = True,
        recall: bool = False,
    ) -> ThreadState:
        """Record that a run begins, with the messages it begins from; what the thread was before.

        edits: a message that is shown last may be asked again, in the place of what followed it. recall: say what the
        thread holds where the messages do not show it. RequestError("conflict") while another server on this database
        has a run going on in the thread.
        """
        entry = recording.RunEntry(
            run=self._row(tenant, thread_id, run_id, agent, parent_run_id, "running"),
            messages=messages, removal=new_id("removal"), edits=edits, recall=recall,
        )  # fmt: skip
        state = await self._write(entry.write)
        if state.edited:
            note("messages.edited", thread=thread_id, run=run_id, messages=state.edited, removal=entry.removal)
        if not await self._mark_dead(state.owners, (tenant, thread_id)):
            await self._write(lambda connection: recording.refuse(connection, entry.run))
            raise RequestError("conflict", "This thread has a run going on at another server.", retry_after=1.0)
        return state

    async def accept_run(
        self,
        tenant: str,
        thread_id: str,
        run_id: str,
        *,
        agent: str = "default",
        parent_run_id: str | None = None,
        messages: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """Keep what a run was sent with while it waits for its thread. Nothing that is stored is edited by it."""
        run = self._row(tenant, thread_id, run_id, agent, parent_run_id, "waiting")
        await self._write(recording.RunEntry(run=run, messages=messages).write)

    def _row(
        self, tenant: str, thread_id: str, run_id: str, agent: str, parent_run_id: str | None, status: RunStatus
    ) -> dict[str, object]:
        return {
            "tenant": tenant, "thread_id": checked_id(thread_id, "threadId"), "id": checked_id(run_id, "runId"),
            "agent": agent, "parent_run_id": parent_run_id, "status": status, "owner": self.owner, "error": None,
            "outcome": None, "usage": None, "created_at": now_ms(), "ended_at": None,
        }  # fmt: skip

    async def end_run(self, ended: Conclusion) -> None:
        """Record how a run ended: its messages, the state, what it asks, all at once."""
        at = now_ms()
        await self._write(lambda connection: recording.conclude(connection, ended, at), END_PATIENCE_SECONDS)

    async def keep_run(self, tenant: str, thread_id: str, run_id: str, body: str) -> None:
        """Keep a run as it stands, in the place of what was kept before. `find_broken` tells of it if this server ends
        before the run does."""
        row = {"tenant": tenant, "thread_id": thread_id, "run_id": run_id, "body": body, "attempts": 0}
        await self._write(lambda connection: rows.upsert(connection, schema.kept_runs, [row], ["body"]))

    async def take_up(self, record: KeptRecord) -> KeptRecord | None:
        """Make a run of a server that ended this one's, with what its thread is. None if another server did."""
        return await self._write(lambda connection: recording.take_up(connection, record, self.owner))

    async def give_up(self, record: KeptRecord) -> None:
        """Record such a run as broken."""
        await self._write(lambda connection: recording.give_up(connection, record))

    async def claim(
        self, tenant: str, thread_id: str, answers: Mapping[str, Mapping[str, object]], run_id: str
    ) -> bool:
        """Accept the answers to open interrupts, all or none. False if one of them was not open any more."""
        return await self._write(lambda connection: recording.claim(connection, tenant, thread_id, answers, run_id))

    async def record_result(
        self, tenant: str, thread_id: str, interrupt_id: str, content: object, message_id: str | None
    ) -> None:
        """Keep what an answered interrupt's call gave, before anyone is told: it must not be made twice."""
        table = schema.interrupts
        values = {"status": "answered", "result": encoded(content), "result_message_id": message_id}
        where = and_(of(table, tenant, thread_id), table.c.id == interrupt_id)
        await self._write(lambda connection: connection.execute(update(table).where(where).values(values)))

    async def interrupts(self, tenant: str, thread_id: str) -> tuple[InterruptRecord, ...]:
        return await self._read(lambda connection: rows.load_interrupts(connection, tenant, thread_id))

    async def messages(self, tenant: str, thread_id: str) -> list[dict[str, Any]]:
        """The thread's messages in order, in wire form; [] for a thread that does not exist."""
        return await self._read(lambda connection: kept.load(connection, tenant, thread_id))

    async def removals(self, tenant: str, thread_id: str) -> list[Removal]:
        """What edits of the thread's history took away, latest first."""
        return await self._read(lambda connection: kept.removals(connection, tenant, thread_id))

    async def restore(self, tenant: str, thread_id: str, removal: str) -> None:
        """Bring back what an edit took away; what stands in its place since is removed in its turn.
        RequestError("not_found")."""
        swapped = new_id("removal")
        await self._write(lambda connection: kept.restore(connection, tenant, thread_id, removal, swapped))
        note("messages.restored", thread=thread_id, removal=removal)

    async def delete_message(self, tenant: str, thread_id: str, message_id: str) -> None:
        """Take a message out of its thread, with the results of its calls. RequestError("not_found")."""
        removal = new_id("removal")
        await self._write(lambda connection: kept.remove(connection, tenant, thread_id, message_id, removal))
        note("message.deleted", thread=thread_id, message=message_id, removal=removal)

    async def state(self, tenant: str, thread_id: str) -> Any:
        query = select(schema.threads.c.state).where(of(schema.threads, tenant, thread_id))
        return decoded(await self._read(lambda connection: connection.scalar(query)))

    async def runs(self, tenant: str, thread_id: str) -> list[RunRecord]:
        """The thread's runs, oldest first."""
        table = schema.runs
        query = select(table).where(of(table, tenant, thread_id)).order_by(table.c.created_at, table.c.id)
        return [rows.run_of(row) for row in await self._rows(query)]

    async def run(self, tenant: str, thread_id: str, run_id: str) -> RunRecord | None:
        table = schema.runs
        found = await self._rows(select(table).where(of(table, tenant, thread_id), table.c.id == run_id))
        return rows.run_of(found[0]) if found else None

    async def threads(
        self,
        tenant: str,
        *,
        agent_id: str | None = None,
        archived: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> tuple[list[ThreadRecord], str | None]:
        """A page of threads, latest first, and the cursor of the next page. `archived`: include the archived ones."""
        table = schema.threads
        query = select(table).where(table.c.tenant == tenant)
        if agent_id is not None:
            query = query.where(table.c.agent_id == agent_id)
        if not archived:
            query = query.where(table.c.archived.is_(False))
        if cursor is not None:
            moment, id = read_cursor(cursor)
            older = and_(table.c.updated_at == moment, table.c.id < id)
            query = query.where(or_(table.c.updated_at < moment, older))
        limit = max(1, min(limit, PAGE))
        found = await self._rows(query.order_by(table.c.updated_at.desc(), table.c.id.desc()).limit(limit + 1))
        page = [rows.thread_of(row) for row in found]
        last = page[limit - 1] if len(page) > limit else None
        return page[:limit], None if last is None else f"{last.updated_at}.{last.id}"

    async def thread(self, tenant: str, thread_id: str) -> ThreadRecord:
        """RequestError("not_found") for a thread that does not exist or is another tenant's."""
        found = await self._rows(select(schema.threads).where(of(schema.threads, tenant, thread_id)))
        if not found:
            raise _no_thread()
        return rows.thread_of(found[0])

    async def change_thread(
        self,
        tenant: str,
        thread_id: str,
        *,
        name: str | None = None,
        archived: bool | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ThreadRecord:
        """Rename, archive or restore; None leaves as it is. RequestError("not_found")."""
        given = {
            "name": None if name is None else recording.clean(name),
            "archived": archived,
            "metadata": encoded(metadata),
        }
        values = {key: value for key, value in given.items() if value is not None}
        if values:
            change = update(schema.threads).where(of(schema.threads, tenant, thread_id)).values(values)
            await self._write(lambda connection: connection.execute(change))
        return await self.thread(tenant, thread_id)

    async def branch_thread(self, tenant: str, thread_id: str, message_id: str) -> ThreadRecord:
        """A new thread with the messages up to this one; the old one stays as it is. RequestError("not_found")."""
        new = new_id("thread")
        if not await self._write(lambda to: recording.branch(to, tenant, thread_id, message_id, new)):
            raise _no_thread()
        return await self.thread(tenant, new)

    async def delete_thread(self, tenant: str, thread_id: str) -> None:
        """Delete a thread with everything that belongs to it. RequestError("not_found")."""

        async def work(connection: AsyncConnection) -> int:
            gone = await connection.execute(delete(schema.threads).where(of(schema.threads, tenant, thread_id)))
            for table in schema.OF_A_THREAD:
                await connection.execute(delete(table).where(of(table, tenant, thread_id)))
            return gone.rowcount

        if not await self._write(work):
            raise _no_thread()
        note("thread.deleted", thread=thread_id)

    async def give_feedback(
        self,
        tenant: str,
        thread_id: str,
        message_id: str,
        score: float,
        comment: str = "",
        position: int | None = None,
    ) -> FeedbackRecord:
        """Keep a person's word on a message, or on a place in it; a later one on the same replaces it.
        RequestError("not_found") for no such message."""
        comment = recording.clean(comment, 10_000)
        record = FeedbackRecord(
            message_id=message_id, score=score, comment=comment, position=position, created_at=now_ms()
        )
        row = {
            "tenant": tenant, "thread_id": thread_id, "message_id": message_id, "score": score,
            "position": schema.WHOLE_MESSAGE if position is None else position,
            "comment": record.comment, "created_at": record.created_at,
        }  # fmt: skip
        table = schema.messages
        known = select(func.count()).select_from(table).where(of(table, tenant, thread_id), table.c.id == message_id)

        async def work(connection: AsyncConnection) -> bool:
            if not await connection.scalar(known):
                return False
            await rows.upsert(connection, schema.feedback, [row], ["score", "comment", "created_at"])
            return True

        if not await self._write(work):
            raise RequestError("not_found", "There is no such message in this thread.", "messageId")
        return record

    async def feedback(self, tenant: str, thread_id: str) -> list[FeedbackRecord]:
        table = schema.feedback
        query = select(table).where(of(table, tenant, thread_id)).order_by(table.c.created_at, table.c.message_id)
        return [rows.feedback_of(row) for row in await self._rows(query)]

    async def save_response(self, tenant: str, response_id: str, body: object) -> None:
        """Keep a response of the Responses wire, in the place of an earlier one of that id."""
        row = {"tenant": tenant, "id": response_id, "body": encoded(body), "created_at": now_ms()}
        await self._write(lambda connection: rows.upsert(connection, schema.responses, [row], ["body"]))

    async def response(self, tenant: str, response_id: str) -> Any:
        """What `save_response` kept; None if there is nothing."""
        table = schema.responses
        query = select(table.c.body).where(table.c.tenant == tenant, table.c.id == response_id)
        return decoded(await self._read(lambda connection: connection.scalar(query)))

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        """False if there was none."""
        table = schema.responses
        removal = delete(table).where(table.c.tenant == tenant, table.c.id == response_id)

        async def work(connection: AsyncConnection) -> int:
            return (await connection.execute(removal)).rowcount

        found = bool(await self._write(work))
        if found:
            note("response.deleted", response=response_id)
        return found

    async def _rows(self, query: Any) -> Sequence[Any]:
        async def work(connection: AsyncConnection) -> Sequence[object]:
            return (await connection.execute(query)).all()

        return await self._read(work)

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]], patience: float = PATIENCE_SECONDS) -> T:
        return await self._thread.run(lambda: self._writer.write(work, patience))

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """In memory there is one connection alone, so reading waits its turn behind the writer."""
        if self._memory:
            return await self._write(work)
        return await self._thread.run(lambda: patiently(lambda: self._reading(work), PATIENCE_SECONDS))

    async def _reading(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        self._check()
        async with self._engine.connect() as connection:
            return await work(connection)

    async def find_broken(self) -> list[KeptRecord]:
        """Record the runs of servers that died as broken; but not those that were kept, which are given back."""
        running = select(schema.runs.c.owner).where(schema.runs.c.status.in_(recording.UNFINISHED)).distinct()
        others = [row.owner for row in await self._rows(running) if row.owner != self.owner]
        dead = [owner for owner in others if not await self._lives(owner)]
        if not dead:
            return []
        await self._write(lambda connection: recording.mark_broken(connection, dead))
        return await self._read(lambda connection: recording.kept_runs(connection, dead))

    async def _lives(self, owner: int) -> bool:
        return await self._thread.run(lambda: self._owners.alive(owner))

    async def _mark_dead(self, owners: Sequence[int], thread: tuple[str, str]) -> bool:
        """Record the runs of those owners that died as broken, those that were kept in this thread among them. False
        if one of them lives."""
        dead = [owner for owner in owners if not await self._lives(owner)]
        if dead:
            await self._write(lambda connection: recording.mark_broken(connection, dead, thread))
        return len(dead) == len(owners)


def _no_thread() -> RequestError:
    return RequestError("not_found", "There is no such thread.", "threadId")


def read_cursor(cursor: str) -> tuple[int, str]:
    """The time and id that a page ended with; RequestError for what was not handed out."""
    moment, _, id = cursor.partition(".")
    if not (moment.isascii() and moment.isdigit()) or len(moment) > 18:
        raise RequestError("invalid_request", "This is not a cursor that was handed out.", "cursor")
    return int(moment), id
