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
from agent_server.runs.store import contents, questions, recording, removal, responses, rows, schema, thread_messages
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
from agent_server.runs.store.removal import Erasure, RemovalScope, RemovedCounts
from agent_server.runs.store.rows import checked_id, decoded, encoded, now_ms, of

PAGE = 100
END_PATIENCE_SECONDS = 20.0
"""How long the ending of a run waits for a database that is locked or out of reach."""


T = TypeVar("T")


class Store:
    """Stores threads and everything that belongs to them. Open it before use; every method is one transaction.

    url: a SQLAlchemy URL: `sqlite:///path`, `sqlite://` for a database in memory, or `postgresql://...`. A driver name
    in it is ignored.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self.owner = self._database.owner
        self.removals_made = 0

    @property
    def place(self) -> str:
        """The database's URL without the password, for messages."""
        return self._database.place

    @property
    def fault(self) -> str | None:
        """Why the database cannot be used now, or None if no fault is known."""
        return self._database.fault

    async def open(self) -> None:
        """Create or migrate the database, and mark the runs of servers that died as broken. Raises StoreUnavailable."""
        await self._database.open()
        await self.find_broken()

    async def close(self) -> None:
        """Complete pending writes and close the database. Safe to call twice."""
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
        """Record the beginning of a run with its messages. Return the thread as it was before.

        edits: if the last message is already stored, it is answered again, and the messages after it are removed.
        recall: return the stored messages that the client's messages leave out. body: the checkpoint from which the run
        is resumed if this server ends before it does. Raises RequestError("conflict") while another server on this
        database has an unfinished run in the thread.
        """
        entry = recording.RunEntry(
            run=self._row(tenant, thread_id, run_id, agent, parent_run_id, "running"),
            key=_request_key(), messages=messages, removal=new_id("removal"), edits=edits, recall=recall, body=body,
        )  # fmt: skip
        state = await self._database.write(entry.write)
        if state.edited:
            note("messages.edited", thread=thread_id, run=run_id, messages=state.edited, removal=entry.removal)
        # Mark the runs of owners that died as broken, including those in this thread that could be resumed.
        thread = (tenant, thread_id)
        dead = [owner for owner in state.owners if not await self._database.lives(owner)]
        if dead:
            await self._database.write(lambda connection: recording.mark_broken(connection, dead, thread))
        if len(dead) < len(state.owners):
            await self._database.write(lambda connection: recording.refuse(connection, entry.run))
            raise RequestError("conflict", "This thread has an unfinished run on another server.", retry_after=1.0)
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
        on_accept: Callable[[Connection], object] | None = None,
        body: str | None = None,
    ) -> None:
        """Store a run's messages while it waits for its thread, without editing stored messages.

        on_accept: written in the same transaction. body: see `begin_run`.
        """
        run = self._row(tenant, thread_id, run_id, agent, parent_run_id, "waiting")
        entry = recording.RunEntry(run=run, key=_request_key(), messages=messages, body=body)

        def work(connection: Connection) -> None:
            entry.write(connection)
            if on_accept is not None:
                on_accept(connection)

        await self._database.write(work)

    def _row(
        self, tenant: str, thread_id: str, run_id: str, agent: str, parent_run_id: str | None, status: RunStatus
    ) -> dict[str, object]:
        return {
            "tenant": tenant, "thread_id": checked_id(thread_id, "threadId"), "id": checked_id(run_id, "runId"),
            "agent": agent, "parent_run_id": parent_run_id, "status": status, "owner": self.owner, "error": None,
            "outcome": None, "usage": None, "created_at": now_ms(), "ended_at": None,
        }  # fmt: skip

    async def end_run(self, conclusion: Conclusion) -> None:
        """Record the end of a run of this server: its messages, the state and its interrupts, in one transaction.
        Raises Superseded if another server has resumed it."""
        at = now_ms()
        await self._database.write(
            lambda connection: recording.conclude(connection, conclusion, at, self.owner), END_PATIENCE_SECONDS
        )

    async def settle_run(self, conclusion: Conclusion) -> None:
        """Do what `end_run` does, for an ending that could not be recorded in time. If another run has begun in the
        thread since then, this run's messages and state are not stored, since they would come after it."""

        def work(connection: Connection) -> None:
            is_followed = recording.is_followed(connection, conclusion)
            late = msgspec.structs.replace(conclusion, messages=(), state=None) if is_followed else conclusion
            recording.conclude(connection, late, now_ms(), self.owner)

        await self._database.write(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction and return its result after the commit, for other modules with tables of their
        own (`callbacks`)."""
        return await self._database.write(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._database.read(work)

    async def keep_run(self, tenant: str, thread_id: str, run_id: str, body: str) -> None:
        """Save a run's checkpoint, replacing an earlier one. `find_broken` returns it if this server ends before the
        run does."""
        await self._database.write(lambda to: recording.keep_run(to, tenant, thread_id, run_id, body))

    @property
    def durable(self) -> bool:
        """Whether the stored data outlives the process."""
        return self._database.durable

    async def save_events(self, saved: Sequence[SavedEvents], patience: float) -> list[bool]:
        """Save events of runs in one transaction. Return for each whether this server still owns the run.

        patience: seconds to wait for a database that is locked or cannot be reached.
        """
        return await self._database.write(
            lambda connection: recording.save_events(connection, saved, self.owner), patience
        )

    async def ended_run(self, tenant: str, run_id: str) -> KeptRecord | None:
        """Return a finished run's checkpoint and events, or None if they are not saved."""
        return await self._database.read(lambda connection: recording.kept_run(connection, tenant, run_id, None))

    async def last_ended(self, tenant: str, thread_id: str, since: int, except_run: str) -> KeptRecord | None:
        """Return the thread's latest run other than `except_run`, without its events, if it ended after `since` in
        milliseconds, and was resumed or ran on a server that has ended."""
        record = await self._database.read(
            lambda connection: recording.last_ended(connection, tenant, thread_id, since, except_run)
        )
        if record is None or record.attempts:
            return record
        if record.owner == self.owner or await self._database.lives(record.owner):
            return None
        return record

    async def join_run(self, tenant: str, thread_id: str, run_id: str, body: str, until: int) -> None:
        """Record which run another one follows. until: when this may be forgotten, in milliseconds since the epoch."""
        await self._database.write(
            lambda connection: recording.join_run(connection, tenant, thread_id, run_id, body, until)
        )

    async def joined_run(self, tenant: str, run_id: str) -> str | None:
        """Return the body that `join_run` stored, or None."""
        return await self._database.read(lambda connection: recording.joined_run(connection, tenant, run_id))

    async def forget_ended(self, before: int) -> None:
        """Delete the saved events of runs that ended before that time in milliseconds since the epoch."""
        await self._database.write(lambda connection: recording.forget_ended(connection, before))

    async def orphans(self, tenant: str, thread_id: str) -> list[KeptRecord]:
        """Return the runs of a thread whose servers have ended and that can be resumed."""
        running = select(schema.runs.c.owner).where(
            of(schema.runs, tenant, thread_id), schema.runs.c.status.in_(recording.UNFINISHED)
        )
        dead = await self._dead_of(await self._database.rows(running.distinct()))
        if not dead:
            return []
        thread = (tenant, thread_id)
        return await self._database.read(lambda connection: recording.kept_runs(connection, dead, thread))

    async def orphan(self, tenant: str, run_id: str, owner: int) -> KeptRecord | None:
        """Return an unfinished run of `owner` that can be resumed, when the gateways have declared that server dead."""
        return await self._database.read(lambda connection: recording.kept_run(connection, tenant, run_id, owner))

    async def is_unfinished(self, tenant: str, run_id: str) -> bool:
        """Return whether an unfinished run with that id is saved, whichever server owns it."""
        return await self._database.read(lambda connection: recording.is_unfinished(connection, tenant, run_id))

    async def run_owner(self, tenant: str, thread_id: str, run_id: str) -> int | None:
        """Return the owner of an unfinished run, or None if the run has ended or is unknown."""
        table = schema.runs
        query = select(table.c.owner).where(of(table, tenant, thread_id), table.c.id == run_id)
        owners = await self._database.rows(query.where(table.c.status.in_(recording.UNFINISHED)))
        return owners[0].owner if owners else None

    async def claim_orphan(self, record: KeptRecord) -> KeptRecord | None:
        """Make this server the owner of a run whose server ended. Return the record with the thread's state and the
        saved events, or None if another server was first. Writes of the former owner are refused from now on."""
        return await self._database.write(lambda connection: recording.claim_orphan(connection, record, self.owner))

    async def give_up(self, record: KeptRecord, ending: SavedEvents | None) -> None:
        """Mark a run that cannot be resumed as broken. ending: its last events, so that it can be read to an end; None
        for a run whose events cannot be read."""
        await self._database.write(lambda connection: recording.give_up(connection, record, ending))

    async def claim(self, tenant: str, thread_id: str, answers: Mapping[str, InterruptAnswer], run_id: str) -> bool:
        """Accept answers to open interrupts, all or none. Return False if one of them is no longer open."""

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
        """Store the result of an answered interrupt's call before it is used, since the call must not be repeated.

        run_id: the run that made the call. Raises Superseded if another server has resumed that run.
        """

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
        """Return the thread's messages in order, in wire form; [] for a thread that does not exist."""
        return await self._database.read(lambda connection: thread_messages.load(connection, tenant, thread_id))

    async def removals(self, tenant: str, thread_id: str) -> list[Removal]:
        """Return the messages that edits of the thread's history removed, latest edit first."""
        return await self._database.read(lambda connection: thread_messages.removals(connection, tenant, thread_id))

    async def restore(self, tenant: str, thread_id: str, removal: str) -> None:
        """Restore the messages that an edit removed. Those that replaced them become a removal of their own. Raises
        RequestError("not_found")."""
        swapped = new_id("removal")
        await self._database.write(
            lambda connection: thread_messages.restore(connection, tenant, thread_id, removal, swapped)
        )
        note("messages.restored", thread=thread_id, removal=removal)

    async def delete_message(self, tenant: str, thread_id: str, message_id: str) -> None:
        """Remove a message and the results of its calls from its thread. Raises RequestError("not_found")."""
        removal = new_id("removal")
        await self._database.write(
            lambda connection: thread_messages.remove(connection, tenant, thread_id, message_id, removal)
        )
        note("message.deleted", thread=thread_id, message=message_id, removal=removal)

    async def state(self, tenant: str, thread_id: str) -> object:
        query = select(schema.threads.c.state).where(of(schema.threads, tenant, thread_id))
        return decoded(await self._database.read(lambda connection: connection.scalar(query)))

    async def runs(self, tenant: str, thread_id: str) -> list[RunRecord]:
        """Return the thread's runs, oldest first."""
        table = schema.runs
        query = select(table).where(of(table, tenant, thread_id)).order_by(table.c.created_at, table.c.id)
        return [rows.run_of(row) for row in await self._database.rows(query)]

    async def run(self, tenant: str, thread_id: str, run_id: str) -> RunRecord | None:
        table = schema.runs
        matches = await self._database.rows(select(table).where(of(table, tenant, thread_id), table.c.id == run_id))
        return rows.run_of(matches[0]) if matches else None

    async def threads(
        self,
        tenant: str,
        *,
        agent_id: str | None = None,
        archived: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> tuple[list[ThreadRecord], str | None]:
        """Return a page of threads, latest first, and the next page's cursor. archived: include archived threads."""
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
        query = query.order_by(table.c.updated_at.desc(), table.c.id.desc()).limit(limit + 1)
        page = [rows.thread_of(row) for row in await self._database.rows(query)]
        last = page[limit - 1] if len(page) > limit else None
        return page[:limit], None if last is None else f"{last.updated_at}.{last.id}"

    async def thread(self, tenant: str, thread_id: str) -> ThreadRecord:
        """Return a thread. Raises RequestError("not_found") if this tenant has no such thread."""
        matches = await self._database.rows(select(schema.threads).where(of(schema.threads, tenant, thread_id)))
        if not matches:
            raise _no_thread()
        return rows.thread_of(matches[0])

    async def change_thread(
        self,
        tenant: str,
        thread_id: str,
        *,
        name: str | None = None,
        archived: bool | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ThreadRecord:
        """Rename, archive or restore a thread; None means no change. Raises RequestError("not_found")."""
        changes = {
            "name": None if name is None else recording.clean(name),
            "archived": archived,
            "metadata": encoded(metadata),
        }
        values = {key: value for key, value in changes.items() if value is not None}
        if values:
            statement = update(schema.threads).where(of(schema.threads, tenant, thread_id)).values(values)
            await self._database.write(lambda connection: connection.execute(statement))
        return await self.thread(tenant, thread_id)

    async def branch_thread(self, tenant: str, thread_id: str, message_id: str) -> ThreadRecord:
        """Create a thread with a copy of the messages up to `message_id`. Raises RequestError("not_found")."""
        new = new_id("thread")
        if not await self._database.write(lambda to: recording.branch(to, tenant, thread_id, message_id, new)):
            raise _no_thread()
        return await self.thread(tenant, new)

    async def delete_thread(self, tenant: str, thread_id: str) -> None:
        """Delete a thread and everything that belongs to it. Raises RequestError("not_found")."""

        def work(connection: Connection) -> int:
            deleted = connection.execute(delete(schema.threads).where(of(schema.threads, tenant, thread_id)))
            files = contents.used(connection, schema.thread_contents, [(tenant, thread_id)])
            for table in schema.OF_A_THREAD:
                connection.execute(delete(table).where(of(table, tenant, thread_id)))
            contents.release(connection, files)
            return deleted.rowcount

        if not await self._database.write(work):
            raise _no_thread()
        self.removals_made += 1
        note("thread.deleted", thread=thread_id)

    async def remove(
        self,
        scope: RemovalScope,
        *,
        prepare: Callable[[Sequence[tuple[str, str]]], Awaitable[None]] | None = None,
        record: Callable[[Connection, RemovedCounts], None] | None = None,
        report: Callable[[RemovedCounts], Awaitable[None]] | None = None,
    ) -> RemovedCounts:
        """Permanently remove everything in a scope, in short transactions, and return its space to the disk; see
        `removal.remove_all`."""
        removed = await removal.remove_all(self._database.write, scope, prepare=prepare, record=record, report=report)
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
        """Store a person's feedback on a message or on a position in it, replacing earlier feedback on the same. Raises
        RequestError("not_found")."""
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
        matching = select(func.count()).select_from(table).where(of(table, tenant, thread_id), table.c.id == message_id)

        def work(connection: Connection) -> bool:
            if not connection.scalar(matching):
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
        """Store a response of the Responses wire, replacing an earlier one with that id. Its age starts again."""
        key = _request_key()  # read here, since the store's own thread does not have the request's context
        await self._database.write(lambda connection: responses.save(connection, tenant, response_id, body, key))

    async def response(self, tenant: str, response_id: str) -> Any:
        """Return the body that `save_response` stored, or None."""
        return await self._database.read(lambda connection: responses.find(connection, tenant, response_id))

    async def newest_responses(self, tenant: str, prefix: str, most: int, *, most_bytes: int) -> list[Any]:
        """Return the saved responses whose ids begin with the prefix, the latest first.

        most_bytes: of their JSON together; the first one may be larger.
        """
        return await self._database.read(
            lambda connection: responses.newest(connection, tenant, prefix, most, most_bytes)
        )

    async def change_response(self, tenant: str, response_id: str, change: Callable[[Any], object]) -> Any:
        """Replace a stored response by `change(body)`, atomically with respect to other servers.

        Return the new body, or None if there is no such response. `change` may run more than once; if it raises, the
        stored body stays.
        """
        return await self._database.write(lambda connection: responses.put(connection, tenant, response_id, change))

    async def delete_response(self, tenant: str, response_id: str) -> bool:
        """Delete a response. Return False if there is none."""
        existed = await self._database.write(lambda connection: responses.remove(connection, tenant, response_id))
        if existed:
            self.removals_made += 1
            note("response.deleted", response=response_id)
        return existed

    async def grant(self, tenant: str, user: str, server: str) -> str | None:
        """Return the body that `save_grant` stored for a user and server, or None."""
        table = schema.grants
        this_grant = and_(table.c.tenant == tenant, table.c.key == user, table.c.server == server)
        grants = await self._database.rows(select(table.c.body).where(this_grant))
        return grants[0].body if grants else None

    async def grant_of_state(self, state: str) -> tuple[str, str, str] | None:
        """Return tenant, user and server of the grant that was saved with `state`, or None."""
        table = schema.grants
        grants = await self._database.rows(
            select(table.c.tenant, table.c.key, table.c.server).where(table.c.state == state)
        )
        return (grants[0].tenant, grants[0].key, grants[0].server) if grants else None

    async def save_grant(self, tenant: str, user: str, server: str, body: str, state: str | None = None) -> None:
        """Store a user's grant at a server. body: encrypted by the caller. state: the key for `grant_of_state`."""
        row = {
            "tenant": tenant, "key": user, "server": server, "body": body, "state": state, "updated_at": now_ms(),
        }  # fmt: skip
        changed = ["body", "state", "updated_at"]
        await self._database.write(lambda connection: rows.upsert(connection, schema.grants, [row], changed))

    async def begin_erasure(self, scope: RemovalScope, by: str) -> tuple[Erasure, bool]:
        """Record that everything of a tenant, or of one of its keys, is to be removed by `erase`. Return the erasure
        and whether it is new; an unfinished one with the same scope is returned instead of a second."""
        requested = Erasure(id=new_id("erasure"), tenant=scope.tenant or "", key=scope.key, by=by, created_at=now_ms())
        erasure = await self._database.write(
            lambda connection: removal.begin_erasure(connection, requested, self.owner)
        )
        return erasure, erasure.id == requested.id

    async def erase(
        self, erasure: Erasure, prepare: Callable[[Sequence[tuple[str, str]]], Awaitable[None]]
    ) -> RemovedCounts:
        """Carry out an erasure or the rest of it; see `remove`. Each transaction records the progress."""

        def record(connection: Connection, removed: RemovedCounts) -> None:
            removal.advance_erasure(connection, erasure, removed)

        removed = await self.remove(erasure.scope, prepare=prepare, record=record)
        await self._database.write(lambda connection: removal.advance_erasure(connection, erasure, removed, now_ms()))
        return removed

    async def erasure(self, id: str) -> Erasure | None:
        return await self._database.read(lambda connection: removal.find_erasure(connection, id))

    async def erasures(self) -> list[Erasure]:
        """Return erasures that are unfinished or ended recently, latest first."""
        return await self._database.read(removal.recent_erasures)

    async def take_over_erasures(self) -> list[Erasure]:
        """Claim the unfinished erasures of servers that have ended; `erase` carries out the rest."""
        table = schema.erasures
        owners = select(table.c.owner).where(table.c.ended_at.is_(None)).distinct()
        if not (dead := await self._dead_of(await self._database.rows(owners))):
            return []
        return await self._database.write(lambda connection: removal.take_over_erasures(connection, dead, self.owner))

    async def find_broken(self) -> list[KeptRecord]:
        """Mark the runs of servers that died as broken, except those that can be resumed, which are returned."""
        running = select(schema.runs.c.owner).where(schema.runs.c.status.in_(recording.UNFINISHED)).distinct()
        dead = await self._dead_of(await self._database.rows(running))
        if not dead:
            return []
        await self._database.write(lambda connection: recording.mark_broken(connection, dead))
        return await self._database.read(lambda connection: recording.kept_runs(connection, dead))

    async def _dead_of(self, owners: Sequence[rows.QueryRow]) -> list[int]:
        others = [row.owner for row in owners if row.owner != self.owner]
        return [owner for owner in others if not await self._database.lives(owner)]


def _request_key() -> str:
    """Return the name of the request's API key, or the subject of its token."""
    return noted_ids().get("key", "")


def _no_thread() -> RequestError:
    return RequestError("not_found", "There is no such thread.", "threadId")


def read_cursor(cursor: str) -> tuple[int, str]:
    """Split a cursor into the time and id of a page's last thread. Raises RequestError for an invalid cursor."""
    moment, _, id = cursor.partition(".")
    if not (moment.isascii() and moment.isdigit()) or len(moment) > 18:
        raise RequestError(
            "invalid_request",
            f"Invalid cursor {cursor[:80]!r}. Use the cursor that a page of threads returned.",
            "cursor",
        )
    return int(moment), id
