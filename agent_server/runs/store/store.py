"""The store of threads, on SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, and_, delete, func, or_, select, update

from adapters.errors import RequestError
from agent_server.ids import new_id
from agent_server.observability.audit import note
from agent_server.observability.telemetry import noted_ids
from agent_server.runs.store import contents, questions, recording, removal, responses, rows, schema
from agent_server.runs.store import messages as kept
from agent_server.runs.store.database import Database
from agent_server.runs.store.records import (
    Conclusion,
    FeedbackRecord,
    InterruptAnswer,
    InterruptRecord,
    KeptRecord,
    Removal,
    RunRecord,
    RunStatus,
    SavedEvents,
    ThreadRecord,
    ThreadState,
)
from agent_server.runs.store.removal import Erasure, Extent, Removed
from agent_server.runs.store.rows import checked_id, decoded, encoded, now_ms, of

PAGE = 100
END_PATIENCE_SECONDS = 20.0
"""How long the ending of a run waits for a database that is locked or out of reach."""


T = TypeVar("T")


class Store:
    """Everything that is kept of threads. Open it before use; every method is one transaction.

    url: SQLAlchemy's: `sqlite:///path`, `sqlite://` for one in memory, or `postgresql://...`; a driver that it names
    is ignored.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.owner = self._database.owner
        self.removals_made = 0

    @property
    def place(self) -> str:
        """Its URL, for people: without the password."""
        return self._database.place

    @property
    def fault(self) -> str | None:
        """Why the database cannot be used now; None if nothing is known to be wrong with it."""
        return self._database.fault

    async def open(self) -> None:
        """Make or migrate the database; record the runs of servers that died as broken. StoreUnavailable if it cannot
        be used."""
        await self._database.open()
        await self.find_broken()

    async def close(self) -> None:
        """Write what is waiting and let go of the database. Safe to call twice."""
        await self._database.close()

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
        body: str | None = None,
    ) -> ThreadState:
        """Record that a run begins, with the messages it begins from; what the thread was before.

        edits: a message that is shown last may be asked again, in the place of what followed it. recall: say what the
        thread holds where the messages do not show it. body: what the run is begun with again if this server
        ends before it does. RequestError("conflict") while another server on this database
        has a run going on in the thread.
        """
        entry = recording.RunEntry(
            run=self._row(tenant, thread_id, run_id, agent, parent_run_id, "running"),
            key=_who(), messages=messages, removal=new_id("removal"), edits=edits, recall=recall, body=body,
        )  # fmt: skip
        state = await self._database.write(entry.write)
        if state.edited:
            note("messages.edited", thread=thread_id, run=run_id, messages=state.edited, removal=entry.removal)
        # Record the runs of those owners that died as broken, those that were kept in this thread among them.
        thread = (tenant, thread_id)
        dead = [owner for owner in state.owners if not await self._database.lives(owner)]
        if dead:
            await self._database.write(lambda connection: recording.mark_broken(connection, dead, thread))
        mark_dead = len(dead) == len(state.owners)
        if not mark_dead:
            await self._database.write(lambda connection: recording.refuse(connection, entry.run))
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
        also: Callable[[Connection], object] | None = None,
        body: str | None = None,
    ) -> None:
        """Keep what a run was sent with while it waits for its thread. Nothing that is stored is edited by it. also:
        what is written with it, both or neither. body: as `begin_run`'s."""
        run = self._row(tenant, thread_id, run_id, agent, parent_run_id, "waiting")
        entry = recording.RunEntry(run=run, key=_who(), messages=messages, body=body)

        def work(connection: Connection) -> None:
            entry.write(connection)
            if also is not None:
                also(connection)

        await self._database.write(work)

    def _row(
        self, tenant: str, thread_id: str, run_id: str, agent: str, parent_run_id: str | None, status: RunStatus
    ) -> dict[str, object]:
        return {
            "tenant": tenant, "thread_id": checked_id(thread_id, "threadId"), "id": checked_id(run_id, "runId"),
            "agent": agent, "parent_run_id": parent_run_id, "status": status, "owner": self.owner, "error": None,
            "outcome": None, "usage": None, "created_at": now_ms(), "ended_at": None,
        }  # fmt: skip

    async def end_run(self, ended: Conclusion) -> None:
        """Record how a run of this server ended: its messages, the state, what it asks, all at once. Raises Superseded
        if another server goes on with it."""
        at = now_ms()
        await self._database.write(
            lambda connection: recording.conclude(connection, ended, at, self.owner), END_PATIENCE_SECONDS
        )

    async def settle_run(self, ended: Conclusion) -> None:
        """As `end_run`, for an ending that could not be recorded when it was told. Where another run has begun in the
        thread since, what this one said and left is not put behind that."""

        def work(connection: Connection) -> None:
            later = recording.is_followed(connection, ended)
            left = msgspec.structs.replace(ended, messages=(), state=None) if later else ended
            recording.conclude(connection, left, now_ms(), self.owner)

        await self._database.write(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """For what a room above keeps in a table of its own (`callbacks`): what `work` returned, once committed."""
        return await self._database.write(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._database.read(work)

    async def keep_run(self, tenant: str, thread_id: str, run_id: str, body: str) -> None:
        """Keep a run as it stands, in the place of what was kept before. `find_broken` tells of it if this server ends
        before the run does."""
        await self._database.write(lambda to: recording.keep_run(to, tenant, thread_id, run_id, body))

    @property
    def durable(self) -> bool:
        """Whether what is written outlives the process."""
        return self._database.durable

    async def save_events(self, saved: Sequence[SavedEvents], patience: float) -> list[bool]:
        """Save what runs of this server have said, in one transaction; of each, whether it is still this server's.
        patience: seconds to wait for a database that is locked or out of reach."""
        return await self._database.write(
            lambda connection: recording.save_events(connection, saved, self.owner), patience
        )

    async def ended_run(self, tenant: str, run_id: str) -> KeptRecord | None:
        """What is saved of a run that ended, with its events; None if nothing is."""
        return await self._database.read(lambda connection: recording.kept_run(connection, tenant, run_id, None))

    async def last_ended(self, tenant: str, thread_id: str, since: int, besides: str) -> KeptRecord | None:
        """The thread's latest run but one of that id, if it ended after that time in milliseconds at a server that has
        ended since, or was resumed; without its events."""
        record = await self._database.read(
            lambda connection: recording.last_ended(connection, tenant, thread_id, since, besides)
        )
        if record is None or record.attempts:
            return record
        if record.owner == self.owner or await self._database.lives(record.owner):
            return None
        return record

    async def join_run(self, tenant: str, thread_id: str, run_id: str, body: str, until: int) -> None:
        """Keep which run another one follows, until a time in milliseconds."""
        await self._database.write(
            lambda connection: recording.join_run(connection, tenant, thread_id, run_id, body, until)
        )

    async def joined_run(self, tenant: str, run_id: str) -> str | None:
        """What `join_run` kept; None if there is nothing."""
        return await self._database.read(lambda connection: recording.joined_run(connection, tenant, run_id))

    async def forget_ended(self, before: int) -> None:
        """Forget the saved events of runs that ended before a time in milliseconds."""
        await self._database.write(lambda connection: recording.forget_ended(connection, before))

    async def orphans(self, tenant: str, thread_id: str) -> list[KeptRecord]:
        """The runs of a thread whose servers ended and that can be resumed."""
        running = select(schema.runs.c.owner).where(
            of(schema.runs, tenant, thread_id), schema.runs.c.status.in_(recording.UNFINISHED)
        )
        dead = await self._dead_of(await self._database.rows(running.distinct()))
        if not dead:
            return []
        thread = (tenant, thread_id)
        return await self._database.read(lambda connection: recording.kept_runs(connection, dead, thread))

    async def orphan(self, tenant: str, run_id: str, owner: int) -> KeptRecord | None:
        """A run of an owner's that goes on and can be resumed, whose server was declared dead by other means than the
        store's."""
        return await self._database.read(lambda connection: recording.kept_run(connection, tenant, run_id, owner))

    async def goes_on(self, tenant: str, run_id: str) -> bool:
        """Whether a run of that id is kept that has not ended, at whatever server."""
        return await self._database.read(lambda connection: recording.goes_on(connection, tenant, run_id))

    async def run_owner(self, tenant: str, thread_id: str, run_id: str) -> int | None:
        """Whose a run is that goes on; None if it ended or is not known."""
        table = schema.runs
        query = select(table.c.owner).where(of(table, tenant, thread_id), table.c.id == run_id)
        found = await self._database.rows(query.where(table.c.status.in_(recording.UNFINISHED)))
        return found[0].owner if found else None

    async def take_up(self, record: KeptRecord) -> KeptRecord | None:
        """Make a run of a server that ended this one's, with what its thread is and the events that were saved. None if
        another server did. From here on what its former owner writes is refused."""
        return await self._database.write(lambda connection: recording.take_up(connection, record, self.owner))

    async def give_up(self, record: KeptRecord) -> None:
        """Record such a run as broken."""
        await self._database.write(lambda connection: recording.give_up(connection, record))

    async def claim(self, tenant: str, thread_id: str, answers: Mapping[str, InterruptAnswer], run_id: str) -> bool:
        """Accept the answers to open interrupts, all or none. False if one of them was not open any more."""

        def work(connection: Connection) -> bool:
            recording.fence(connection, tenant, thread_id, run_id, self.owner)
            return questions.claim(connection, tenant, thread_id, answers, run_id)

        return await self._database.write(work)

    async def record_result(
        self,
        tenant: str,
        thread_id: str,
        interrupt_id: str,
        content: object,
        message_id: str | None,
        run_id: str | None = None,
    ) -> None:
        """Keep what an answered interrupt's call gave, before anyone is told: it must not be made twice. run_id: of
        the run that makes it; Superseded where another server goes on with that."""

        def work(connection: Connection) -> None:
            if run_id is not None:
                recording.fence(connection, tenant, thread_id, run_id, self.owner)
            questions.record_result(connection, tenant, thread_id, interrupt_id, content, message_id)

        await self._database.write(work)

    async def interrupts(self, tenant: str, thread_id: str) -> tuple[InterruptRecord, ...]:
        return await self._database.read(lambda connection: questions.load(connection, tenant, thread_id))

    async def expire_interrupts(self, tenant: str, thread_id: str, ids: Collection[str]) -> None:
        """Close open interrupts without an answer: the next run of the thread tells the model that none came."""
        now = datetime.now(UTC).isoformat()
        await self._database.write(lambda connection: questions.expire(connection, tenant, thread_id, ids, now))

    async def messages(self, tenant: str, thread_id: str) -> list[dict[str, Any]]:
        """The thread's messages in order, in wire form; [] for a thread that does not exist."""
        return await self._database.read(lambda connection: kept.load(connection, tenant, thread_id))

    async def removals(self, tenant: str, thread_id: str) -> list[Removal]:
        """What edits of the thread's history took away, latest first."""
        return await self._database.read(lambda connection: kept.removals(connection, tenant, thread_id))

    async def restore(self, tenant: str, thread_id: str, removal: str) -> None:
        """Bring back what an edit took away; what stands in its place since is removed in its turn.
        RequestError("not_found")."""
        swapped = new_id("removal")
        await self._database.write(lambda connection: kept.restore(connection, tenant, thread_id, removal, swapped))
        note("messages.restored", thread=thread_id, removal=removal)

    async def delete_message(self, tenant: str, thread_id: str, message_id: str) -> None:
        """Take a message out of its thread, with the results of its calls. RequestError("not_found")."""
        removal = new_id("removal")
        await self._database.write(lambda connection: kept.remove(connection, tenant, thread_id, message_id, removal))
        note("message.deleted", thread=thread_id, message=message_id, removal=removal)

    async def state(self, tenant: str, thread_id: str) -> object:
        query = select(schema.threads.c.state).where(of(schema.threads, tenant, thread_id))
        return decoded(await self._database.read(lambda connection: connection.scalar(query)))

    async def runs(self, tenant: str, thread_id: str) -> list[RunRecord]:
        """The thread's runs, oldest first."""
        table = schema.runs
        query = select(table).where(of(table, tenant, thread_id)).order_by(table.c.created_at, table.c.id)
        return [rows.run_of(row) for row in await self._database.rows(query)]

    async def run(self, tenant: str, thread_id: str, run_id: str) -> RunRecord | None:
        table = schema.runs
        found = await self._database.rows(select(table).where(of(table, tenant, thread_id), table.c.id == run_id))
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
        found = await self._database.rows(query.order_by(table.c.updated_at.desc(), table.c.id.desc()).limit(limit + 1))
        page = [rows.thread_of(row) for row in found]
        last = page[limit - 1] if len(page) > limit else None
        return page[:limit], None if last is None else f"{last.updated_at}.{last.id}"

    async def thread(self, tenant: str, thread_id: str) -> ThreadRecord:
        """RequestError("not_found") for a thread that does not exist or is another tenant's."""
        found = await self._database.rows(select(schema.threads).where(of(schema.threads, tenant, thread_id)))
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
            await self._database.write(lambda connection: connection.execute(change))
        return await self.thread(tenant, thread_id)

    async def branch_thread(self, tenant: str, thread_id: str, message_id: str) -> ThreadRecord:
        """A new thread with the messages up to this one; the old one stays as it is. RequestError("not_found")."""
        new = new_id("thread")
        if not await self._database.write(lambda to: recording.branch(to, tenant, thread_id, message_id, new)):
            raise _no_thread()
        return await self.thread(tenant, new)

    async def delete_thread(self, tenant: str, thread_id: str) -> None:
        """Delete a thread with everything that belongs to it. RequestError("not_found")."""

        def work(connection: Connection) -> int:
            gone = connection.execute(delete(schema.threads).where(of(schema.threads, tenant, thread_id)))
            files = contents.used(connection, schema.thread_contents, [(tenant, thread_id)])
            for table in schema.OF_A_THREAD:
                connection.execute(delete(table).where(of(table, tenant, thread_id)))
            contents.release(connection, files)
            return gone.rowcount

        if not await self._database.write(work):
            raise _no_thread()
        self.removals_made += 1
        note("thread.deleted", thread=thread_id)

    async def remove(
        self,
        extent: Extent,
        *,
        prepare: Callable[[Sequence[tuple[str, str]]], Awaitable[None]] | None = None,
        record: Callable[[Connection, Removed], None] | None = None,
        report: Callable[[Removed], Awaitable[None]] | None = None,
    ) -> Removed:
        """Remove all of an extent for good, in short transactions, and give its room back to the disk; see
        `removal.remove_all`."""
        removed = await removal.remove_all(self._database.write, extent, prepare=prepare, record=record, report=report)
        if removed:
            self.removals_made += 1
            await self._database.forget_removed()
        return removed

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

        def work(connection: Connection) -> bool:
            if not connection.scalar(known):
                return False
            rows.upsert(connection, schema.feedback, [row], ["score", "comment", "created_at"])
            return True

        if not await self._database.write(work):
            raise RequestError("not_found", "There is no such message in this thread.", "messageId")
        return record

    async def feedback(self, tenant: str, thread_id: str) -> list[FeedbackRecord]:
        table = schema.feedback
        query = select(table).where(of(table, tenant, thread_id)).order_by(table.c.created_at, table.c.message_id)
        return [rows.feedback_of(row) for row in await self._database.rows(query)]

    async def save_response(self, tenant: str, response_id: str, body: object) -> None:
        """Keep a response of the Responses wire, in the place of an earlier one of that id. Its age begins anew."""
        who = _who()  # here: the store's own thread does not know who asks
        await self._database.write(lambda connection: responses.save(connection, tenant, response_id, body, who))

    async def response(self, tenant: str, response_id: str) -> Any:
        """What `save_response` kept; None if there is nothing."""
        return await self._database.read(lambda connection: responses.find(connection, tenant, response_id))

    async def newest_responses(self, tenant: str, prefix: str, most: int) -> list[Any]:
        """What `save_response` kept under ids that begin with the prefix, what was saved last first."""
        return await self._database.read(lambda connection: responses.newest(connection, tenant, prefix, most))

    async def change_response(self, tenant: str, response_id: str, change: Callable[[Any], object]) -> Any:
        """Put what `change` makes of what was kept in its place, whatever other servers change meanwhile; it may run
        more than once. What is kept then; None if nothing was. Raises what `change` raises, and keeps what was."""
        return await self._database.write(lambda connection: responses.put(connection, tenant, response_id, change))

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        """False if there was none."""
        found = await self._database.write(lambda connection: responses.remove(connection, tenant, response_id))
        if found:
            self.removals_made += 1
            note("response.deleted", response=response_id)
        return found

    async def grant(self, tenant: str, user: str, server: str) -> str | None:
        """What `save_grant` kept for a user at a server."""
        table = schema.grants
        chosen = and_(table.c.tenant == tenant, table.c.key == user, table.c.server == server)
        found = await self._database.rows(select(table.c.body).where(chosen))
        return found[0].body if found else None

    async def grant_of_state(self, state: str) -> tuple[str, str, str] | None:
        """Tenant, user and server of the grant that was saved with that state."""
        table = schema.grants
        found = await self._database.rows(
            select(table.c.tenant, table.c.key, table.c.server).where(table.c.state == state)
        )
        return (found[0].tenant, found[0].key, found[0].server) if found else None

    async def save_grant(self, tenant: str, user: str, server: str, body: str, state: str | None = None) -> None:
        """Keep what a user granted at a server, encrypted by whoever calls this. state: finds it again."""
        row = {
            "tenant": tenant, "key": user, "server": server, "body": body, "state": state, "updated_at": now_ms(),
        }  # fmt: skip
        changed = ["body", "state", "updated_at"]
        await self._database.write(lambda connection: rows.upsert(connection, schema.grants, [row], changed))

    async def begin_erasure(self, extent: Extent, by: str) -> tuple[Erasure, bool]:
        """Record that all of a tenant, or of one of its keys, is to be removed; and whether this was not asked for
        already. `erase` carries it out."""
        asked = Erasure(id=new_id("erasure"), tenant=extent.tenant or "", key=extent.key, by=by, created_at=now_ms())
        erasure = await self._database.write(lambda connection: removal.begin_erasure(connection, asked, self.owner))
        return erasure, erasure.id == asked.id

    async def erase(self, erasure: Erasure, prepare: Callable[[Sequence[tuple[str, str]]], Awaitable[None]]) -> Removed:
        """Carry out an erasure, or the rest of it; see `remove`. How far it is, is recorded in each transaction."""

        def record(connection: Connection, removed: Removed) -> None:
            removal.advance_erasure(connection, erasure, removed)

        removed = await self.remove(erasure.extent, prepare=prepare, record=record)
        await self._database.write(lambda connection: removal.advance_erasure(connection, erasure, removed, now_ms()))
        return removed

    async def erasure(self, id: str) -> Erasure | None:
        return await self._database.read(lambda connection: removal.find_erasure(connection, id))

    async def erasures(self) -> list[Erasure]:
        """Those that go on or ended lately, latest first."""
        return await self._database.read(removal.recent_erasures)

    async def take_over_erasures(self) -> list[Erasure]:
        """Those that servers did not end before they ended themselves; `erase` carries out the rest."""
        table = schema.erasures
        owners = select(table.c.owner).where(table.c.ended_at.is_(None)).distinct()
        if not (dead := await self._dead_of(await self._database.rows(owners))):
            return []
        return await self._database.write(lambda connection: removal.take_over_erasures(connection, dead, self.owner))

    async def find_broken(self) -> list[KeptRecord]:
        """Record the runs of servers that died as broken; but not those that were kept, which are given back."""
        running = select(schema.runs.c.owner).where(schema.runs.c.status.in_(recording.UNFINISHED)).distinct()
        dead = await self._dead_of(await self._database.rows(running))
        if not dead:
            return []
        await self._database.write(lambda connection: recording.mark_broken(connection, dead))
        return await self._database.read(lambda connection: recording.kept_runs(connection, dead))

    async def _dead_of(self, found: Sequence[rows.FoundRow]) -> list[int]:
        others = [row.owner for row in found if row.owner != self.owner]
        return [owner for owner in others if not await self._database.lives(owner)]


def _who() -> str:
    """The key that asks, by its name, or a token's subject."""
    return noted_ids().get("key", "")


def _no_thread() -> RequestError:
    return RequestError("not_found", "There is no such thread.", "threadId")


def read_cursor(cursor: str) -> tuple[int, str]:
    """The time and id that a page ended with; RequestError for what was not handed out."""
    moment, _, id = cursor.partition(".")
    if not (moment.isascii() and moment.isdigit()) or len(moment) > 18:
        raise RequestError("invalid_request", "This is not a cursor that was handed out.", "cursor")
    return int(moment), id
