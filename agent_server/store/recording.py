"""What the store writes about runs: their beginning and their end.

Each function is one part of a transaction, and repeatable (see `writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import and_, bindparam, delete, exists, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_server.store import contents, questions, rows, schema
from agent_server.store import messages as kept
from agent_server.store.records import Conclusion, KeptRecord, RunStatus, ThreadState
from agent_server.store.rows import bound, decoded, encoded, now_ms, of, of_bound
from events.vocabulary import CancelledOutcome, Event, InterruptOutcome, RunError, RunFinished

NAME_LENGTH = 80
NAME_SOURCE = 4096
"""Characters of a message that are looked at for its thread's name."""
UNFINISHED = ("waiting", "running")
_OTHER_OWNERS = (
    select(schema.runs.c.owner)
    .where(of_bound(schema.runs), schema.runs.c.status == "running", schema.runs.c.owner != bindparam("own"))
    .distinct()
)
_NAME_THREAD = update(schema.threads).where(of_bound(schema.threads)).values(name=bindparam("new_name"))
_CHANGE_THREAD = update(schema.threads).where(of_bound(schema.threads))
_FORGET = delete(schema.kept_runs).where(of_bound(schema.kept_runs), schema.kept_runs.c.run_id == bindparam("of_run"))
_CHANGE_RUN = update(schema.runs).where(of_bound(schema.runs), schema.runs.c.id == bindparam("of_run"))


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is entered. run: a row of `runs`. key: whose the thread is if the run begins it. messages: the
    client's, in wire form. removal: the id of what an edit that they make takes away. edits: they may make one.
    recall: the client may leave out what is stored."""

    run: dict[str, Any]
    key: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    removal: str = ""
    edits: bool = False
    recall: bool = False

    async def write(self, connection: AsyncConnection) -> ThreadState:
        """Enter the run and its thread; what the thread was before.

        A thread that waits for an answer does not take the messages yet: the input may be refused.
        """
        run, thread = self.run, (self.run["tenant"], self.run["thread_id"])
        state = await _touch(connection, *thread, run["agent"], name_from(self.messages), self.key)
        interrupts = await questions.load(connection, *thread)
        owners = await _other_owners(connection, *thread, run["owner"])
        changed = [name for name in run if name not in ("tenant", "thread_id", "id")]
        await rows.upsert(connection, schema.runs, [run], changed)
        messages = await kept.Thread.read(connection, *thread)
        recalled = await kept.recall(messages, self.messages) if self.recall else ()
        if self.messages and not any(each.status == "open" for each in interrupts):
            await kept.take(messages, self.messages, self.removal, edits=self.edits)
        return ThreadState(state=state, messages=recalled, interrupts=interrupts, owners=owners, edited=messages.aside)


async def _other_owners(connection: AsyncConnection, tenant: str, thread_id: str, owner: int) -> tuple[int, ...]:
    return tuple(await connection.scalars(_OTHER_OWNERS, bound(tenant, thread_id, own=owner)))


@lru_cache(maxsize=2)
def _entering(dialect: str) -> Any:
    table = schema.threads
    return rows.upserting(dialect, table, ("updated_at",)).returning(table.c.state, table.c.name)


async def _touch(connection: AsyncConnection, tenant: str, thread_id: str, agent: str, name: str, key: str) -> Any:
    """Make the thread if it is new, note the time if not; the state it has."""
    now = now_ms()
    row = {
        "tenant": tenant, "id": thread_id, "name": name, "agent_id": agent, "archived": False, "state": None,
        "metadata": "{}", "created_at": now, "updated_at": now, "key": key,
    }  # fmt: skip
    found = (await connection.execute(_entering(connection.dialect.name), row)).one()
    if name and not found.name:
        await connection.execute(_NAME_THREAD, bound(tenant, thread_id, new_name=name))
    return decoded(found.state)


BRANCH = " (branch)"


async def branch(connection: AsyncConnection, tenant: str, thread_id: str, message_id: str, branch_id: str) -> bool:
    """Begin another thread with what one holds up to a message; agent, state and metadata go along. False if there is
    no such thread; RequestError("not_found") if it has no such message."""
    table = schema.threads
    found = (await connection.execute(select(table).where(of(table, tenant, thread_id)))).mappings().first()
    if found is None:
        return False
    now = now_ms()
    name = f"{found['name'].removesuffix(BRANCH)}{BRANCH}" if found["name"] else ""
    row = {**found, "id": branch_id, "name": name, "archived": False, "created_at": now, "updated_at": now}
    await rows.upsert(connection, table, [row], ["updated_at"])
    await kept.copy(connection, tenant, thread_id, message_id, branch_id)
    return True


async def conclude(connection: AsyncConnection, ended: Conclusion, at: int) -> None:
    """Write how a run ended, at that time in milliseconds."""
    thread = ended.tenant, ended.thread_id
    status, error = status_of(ended.terminal)
    outcome = ended.terminal.outcome if isinstance(ended.terminal, RunFinished) else None
    usage = ended.terminal.usage if isinstance(ended.terminal, RunFinished | RunError) else None
    run: dict[str, Any] = {
        "status": status, "error": error, "outcome": encoded(outcome), "usage": encoded(usage), "ended_at": at
    }  # fmt: skip
    changes: dict[str, Any] = {"updated_at": at}
    if ended.state is not None:
        changes["state"] = encoded(ended.state)
    await connection.execute(_CHANGE_THREAD, bound(*thread, **changes))
    await connection.execute(_CHANGE_RUN, bound(*thread, of_run=ended.run_id, **run))
    if ended.kept:
        await connection.execute(_FORGET, bound(*thread, of_run=ended.run_id))
    if ended.messages:
        await kept.add(connection, *thread, ended.messages)
    if status == "interrupted":
        await questions.ask(connection, ended)


def status_of(terminal: Event) -> tuple[RunStatus, str | None]:
    """A run's status by its terminal event, and the error's code."""
    if isinstance(terminal, RunError):
        return "failed", terminal.code
    outcome = terminal.outcome if isinstance(terminal, RunFinished) else None
    if isinstance(outcome, InterruptOutcome):
        return "interrupted", None
    return ("cancelled" if isinstance(outcome, CancelledOutcome) else "finished"), None


async def refuse(connection: AsyncConnection, run: Mapping[str, Any]) -> None:
    """A run that was entered but must not begin."""
    table = schema.runs
    this = and_(of(table, run["tenant"], run["thread_id"]), table.c.id == run["id"])
    await connection.execute(update(table).where(this).values(status="failed", error="conflict", ended_at=now_ms()))


async def mark_broken(
    connection: AsyncConnection, owners: Sequence[int], thread: tuple[str, str] | None = None
) -> None:
    """The runs of servers that died; those that were kept only in this thread, which goes on without them."""
    runs, kept = schema.runs, schema.kept_runs
    is_kept = exists().where(
        kept.c.tenant == runs.c.tenant, kept.c.thread_id == runs.c.thread_id, kept.c.run_id == runs.c.id
    )
    here = not_(is_kept) if thread is None else or_(not_(is_kept), of(runs, *thread))
    where = and_(runs.c.status.in_(UNFINISHED), runs.c.owner.in_(owners), here)
    await connection.execute(update(runs).where(where).values(status="broken", ended_at=now_ms()))


async def kept_runs(connection: AsyncConnection, owners: Sequence[int]) -> list[KeptRecord]:
    """The runs of servers that died, of which enough was kept to go on with them, oldest first."""
    runs, kept = schema.runs, schema.kept_runs
    same = and_(runs.c.tenant == kept.c.tenant, runs.c.thread_id == kept.c.thread_id, runs.c.id == kept.c.run_id)
    query = select(kept, runs.c.agent, runs.c.owner, runs.c.created_at).join(runs, same)
    query = query.where(runs.c.status.in_(UNFINISHED), runs.c.owner.in_(owners)).order_by(runs.c.created_at)
    found = (await connection.execute(query)).all()
    return [await _kept(connection, row) for row in found]


async def _kept(connection: AsyncConnection, row: rows.FoundRow) -> KeptRecord:
    body = await contents.whole_one(connection, row.tenant, row.body)
    return KeptRecord(**{**row._mapping, "body": body})


async def keep_run(connection: AsyncConnection, tenant: str, thread_id: str, run_id: str, body: str) -> None:
    """Keep a run as it stands, in the place of what was kept before."""
    text, found = contents.parted(body)
    row = {"tenant": tenant, "thread_id": thread_id, "run_id": run_id, "body": text, "attempts": 0}
    await rows.upsert(connection, schema.kept_runs, [row], ["body"])
    await contents.keep(connection, schema.thread_contents, tenant, thread_id, found)


async def take_up(connection: AsyncConnection, record: KeptRecord, owner: int) -> KeptRecord | None:
    """Make a kept run this owner's; None if it is not its former owner's any more."""
    runs, kept, thread = schema.runs, schema.kept_runs, (record.tenant, record.thread_id)
    this = and_(of(runs, *thread), runs.c.id == record.run_id)
    still = and_(this, runs.c.owner == record.owner, runs.c.status.in_(UNFINISHED))
    if not (await connection.execute(update(runs).where(still).values(owner=owner, status="running"))).rowcount:
        return None
    attempts = record.attempts + 1
    counted = update(kept).where(of(kept, *thread), kept.c.run_id == record.run_id).values(attempts=attempts)
    await connection.execute(counted)
    state = await connection.scalar(select(schema.threads.c.state).where(of(schema.threads, *thread)))
    found = ThreadState(state=decoded(state), interrupts=await questions.load(connection, *thread))
    return msgspec.structs.replace(record, attempts=attempts, owner=owner, thread=found)


async def give_up(connection: AsyncConnection, record: KeptRecord) -> None:
    """Record a kept run as broken, and forget what was kept of it."""
    runs, thread = schema.runs, (record.tenant, record.thread_id)
    still = and_(of(runs, *thread), runs.c.id == record.run_id, runs.c.status.in_(UNFINISHED))
    await connection.execute(update(runs).where(still).values(status="broken", ended_at=now_ms()))
    await connection.execute(_FORGET, bound(*thread, of_run=record.run_id))


def name_from(messages: Sequence[Mapping[str, Any]]) -> str:
    """A thread's first name: how its first user message begins."""
    for message in messages:
        content = message.get("content")
        if message.get("role") != "user":
            continue
        if isinstance(content, list):
            content = next((part.get("text") for part in content if part.get("type") == "text"), "")
        start = str(content or "").lstrip()[:NAME_SOURCE]  # a long text's split would hold up the other threads
        return clean(" ".join(start.split()), NAME_LENGTH)
    return ""


def clean(text: str, length: int = 512) -> str:
    return text.replace("\x00", "")[:length]
