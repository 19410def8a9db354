"""What the store writes about runs: their beginning and their end.

Each function is one part of a transaction, and repeatable (see `Writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, bindparam, delete, exists, func, not_, or_, select, update

from agent_server.runs.store import contents, questions, rows, schema
from agent_server.runs.store import messages as kept
from agent_server.runs.store.connections import Superseded
from agent_server.runs.store.records import Conclusion, KeptRecord, RunStatus, SavedEvents, ThreadState
from agent_server.runs.store.rows import bound, decoded, encoded, now_ms, of, of_bound
from events.vocabulary import CancelledOutcome, Event, InterruptOutcome, RunError, RunFinished

NAME_LENGTH = 80
NAME_SOURCE = 4096
"""Characters of a message that are looked at for its thread's name."""
UNFINISHED = ("waiting", "running")
FORGET_SLICE = 200
_OTHER_OWNERS = (
    select(schema.runs.c.owner)
    .where(of_bound(schema.runs), schema.runs.c.status == "running", schema.runs.c.owner != bindparam("own"))
    .distinct()
)
_NAME_THREAD = update(schema.threads).where(of_bound(schema.threads)).values(name=bindparam("new_name"))
_CHANGE_THREAD = update(schema.threads).where(of_bound(schema.threads))
_OF_KEPT = and_(of_bound(schema.kept_runs), schema.kept_runs.c.run_id == bindparam("of_run"))
_OF_EVENTS = and_(of_bound(schema.run_events), schema.run_events.c.run_id == bindparam("of_run"))
_FORGET = delete(schema.kept_runs).where(_OF_KEPT)
_FORGET_EVENTS = delete(schema.run_events).where(_OF_EVENTS)
_END_KEPT = update(schema.kept_runs).where(_OF_KEPT)
_RUN = and_(of_bound(schema.runs), schema.runs.c.id == bindparam("of_run"))
# Not `status IN (...)`: SQLAlchemy writes that anew for every execution.
_GOES_ON = or_(*(schema.runs.c.status == status for status in UNFINISHED))
_HELD = and_(_RUN, schema.runs.c.owner == bindparam("own"), _GOES_ON)
_CHANGE_RUN = update(schema.runs).where(_HELD)
_IS_KNOWN = select(schema.runs.c.id).where(_RUN)
_FENCE = select(schema.runs.c.id).where(_HELD).with_for_update()
_FENCE_SQLITE = update(schema.runs).where(_HELD).values(owner=schema.runs.c.owner)
_EVENTS = select(schema.run_events.c.packed).where(_OF_EVENTS).order_by(schema.run_events.c.number)


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is entered. run: a row of `runs`. key: whose the thread is if the run begins it. messages: the
    client's, in wire form. removal: the id of what an edit that they make takes away. edits: they may make one.
    recall: the client may leave out what is stored. body: what the run is begun with again if this server ends."""

    run: dict[str, Any]
    key: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    removal: str = ""
    edits: bool = False
    recall: bool = False
    body: str | None = None

    def write(self, connection: Connection) -> ThreadState:
        """Enter the run and its thread; what the thread was before.

        A thread that waits for an answer does not take the messages yet: the input may be refused.
        """
        run, thread = self.run, (self.run["tenant"], self.run["thread_id"])
        state = _touch(connection, *thread, run["agent"], name_from(self.messages), self.key)
        interrupts = questions.load(connection, *thread)
        owners = _other_owners(connection, *thread, run["owner"])
        changed = [name for name in run if name not in ("tenant", "thread_id", "id")]
        rows.upsert(connection, schema.runs, [run], changed)
        if self.body is not None:
            forget_events(connection, *thread, run["id"])
            keep_run(connection, *thread, run["id"], self.body)
        messages = kept.Thread.read(connection, *thread)
        recalled = kept.recall(messages, self.messages) if self.recall else ()
        if self.messages and not any(each.status == "open" for each in interrupts):
            kept.take(messages, self.messages, self.removal, edits=self.edits)
        return ThreadState(state=state, messages=recalled, interrupts=interrupts, owners=owners, edited=messages.aside)


def _other_owners(connection: Connection, tenant: str, thread_id: str, owner: int) -> tuple[int, ...]:
    return tuple(connection.scalars(_OTHER_OWNERS, bound(tenant, thread_id, own=owner)))


@lru_cache(maxsize=2)
def _entering(dialect: str) -> Any:
    table = schema.threads
    return rows.upserting(dialect, table, ("updated_at",)).returning(table.c.state, table.c.name)


def _touch(connection: Connection, tenant: str, thread_id: str, agent: str, name: str, key: str) -> Any:
    """Make the thread if it is new, note the time if not; the state it has."""
    now = now_ms()
    row = {
        "tenant": tenant, "id": thread_id, "name": name, "agent_id": agent, "archived": False, "state": None,
        "metadata": "{}", "created_at": now, "updated_at": now, "key": key,
    }  # fmt: skip
    found = connection.execute(_entering(connection.dialect.name), row).one()
    if name and not found.name:
        connection.execute(_NAME_THREAD, bound(tenant, thread_id, new_name=name))
    return decoded(found.state)


BRANCH = " (branch)"


def branch(connection: Connection, tenant: str, thread_id: str, message_id: str, branch_id: str) -> bool:
    """Begin another thread with what one holds up to a message; agent, state and metadata go along. False if there is
    no such thread; RequestError("not_found") if it has no such message."""
    table = schema.threads
    found = connection.execute(select(table).where(of(table, tenant, thread_id))).mappings().first()
    if found is None:
        return False
    now = now_ms()
    name = f"{found['name'].removesuffix(BRANCH)}{BRANCH}" if found["name"] else ""
    row = {**found, "id": branch_id, "name": name, "archived": False, "created_at": now, "updated_at": now}
    rows.upsert(connection, table, [row], ["updated_at"])
    kept.copy(connection, tenant, thread_id, message_id, branch_id)
    return True


def is_held(connection: Connection, tenant: str, thread_id: str, run_id: str, owner: int) -> bool:
    """Whether the run goes on and is this owner's: an owner's number is the fencing token of its runs, which changes
    when another server resumes them. It stays so until the transaction ends."""
    key = bound(tenant, thread_id, of_run=run_id, own=owner)
    if connection.dialect.name == "sqlite":  # its driver begins a transaction with the first write alone
        return bool(connection.execute(_FENCE_SQLITE, key).rowcount)
    return connection.scalar(_FENCE, key) is not None


def fence(connection: Connection, tenant: str, thread_id: str, run_id: str, owner: int) -> None:
    """Raise Superseded for a run that goes on as another owner's, or ended. One that was deleted is nobody's."""
    if is_held(connection, tenant, thread_id, run_id, owner):
        return
    if connection.scalar(_IS_KNOWN, bound(tenant, thread_id, of_run=run_id)) is not None:
        raise Superseded


def conclude(connection: Connection, ended: Conclusion, at: int, owner: int) -> None:
    """Write how a run of this owner's ended, at that time in milliseconds. Raises Superseded."""
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
    key = bound(*thread, of_run=ended.run_id)
    changed = connection.execute(_CHANGE_RUN, {**key, "own": owner, **run}).rowcount
    if not changed and connection.scalar(_IS_KNOWN, key) is not None:
        raise Superseded
    connection.execute(_CHANGE_THREAD, bound(*thread, **changes))
    if (saved := ended.saved) is not None:
        if saved.packed:
            added = {name: getattr(saved, name) for name in map(str, schema.run_events.c.keys())}
            rows.upsert(connection, schema.run_events, [added], ["packed"])
        ending = bound(*thread, of_run=ended.run_id, body=saved.body or "", ended_at=at)
        connection.execute(_END_KEPT, ending)
    if ended.messages:
        kept.add(connection, *thread, ended.messages)
    if status == "interrupted":
        questions.ask(connection, ended)


def is_followed(connection: Connection, ended: Conclusion) -> bool:
    """Whether another run has begun in the thread after this one."""
    runs = schema.runs
    mine = select(runs.c.created_at).where(of(runs, ended.tenant, ended.thread_id), runs.c.id == ended.run_id)
    later = select(runs.c.id).where(
        of(runs, ended.tenant, ended.thread_id), runs.c.id != ended.run_id, runs.c.created_at >= mine.scalar_subquery()
    )
    return connection.scalar(later.limit(1)) is not None


def status_of(terminal: Event) -> tuple[RunStatus, str | None]:
    """A run's status by its terminal event, and the error's code."""
    if isinstance(terminal, RunError):
        return "failed", terminal.code
    outcome = terminal.outcome if isinstance(terminal, RunFinished) else None
    if isinstance(outcome, InterruptOutcome):
        return "interrupted", None
    return ("cancelled" if isinstance(outcome, CancelledOutcome) else "finished"), None


def refuse(connection: Connection, run: Mapping[str, Any]) -> None:
    """A run that was entered but must not begin."""
    table = schema.runs
    this = and_(of(table, run["tenant"], run["thread_id"]), table.c.id == run["id"])
    connection.execute(update(table).where(this).values(status="failed", error="conflict", ended_at=now_ms()))


def mark_broken(connection: Connection, owners: Sequence[int], thread: tuple[str, str] | None = None) -> None:
    """The runs of servers that died; those that were kept only in this thread, which goes on without them."""
    runs, kept = schema.runs, schema.kept_runs
    is_kept = exists().where(
        kept.c.tenant == runs.c.tenant, kept.c.thread_id == runs.c.thread_id, kept.c.run_id == runs.c.id,
        kept.c.ended_at.is_(None),
    )  # fmt: skip
    here = not_(is_kept) if thread is None else or_(not_(is_kept), of(runs, *thread))
    where = and_(runs.c.status.in_(UNFINISHED), runs.c.owner.in_(owners), here)
    connection.execute(update(runs).where(where).values(status="broken", ended_at=now_ms()))


_SAME = and_(
    schema.runs.c.tenant == schema.kept_runs.c.tenant,
    schema.runs.c.thread_id == schema.kept_runs.c.thread_id,
    schema.runs.c.id == schema.kept_runs.c.run_id,
)
_KEPT = select(
    schema.kept_runs.c.tenant, schema.kept_runs.c.thread_id, schema.kept_runs.c.run_id, schema.kept_runs.c.body,
    schema.kept_runs.c.attempts, schema.kept_runs.c.progress, schema.runs.c.agent, schema.runs.c.owner,
    schema.runs.c.created_at,
).join(schema.runs, _SAME)  # fmt: skip


def kept_runs(connection: Connection, owners: Sequence[int], thread: tuple[str, str] | None = None) -> list[KeptRecord]:
    """The runs of servers that died, of which enough was kept to go on with them, oldest first. thread: its alone."""
    runs = schema.runs
    query = _KEPT.where(runs.c.status.in_(UNFINISHED), runs.c.owner.in_(owners), schema.kept_runs.c.ended_at.is_(None))
    if thread is not None:
        query = query.where(of(runs, *thread))
    found = connection.execute(query.order_by(runs.c.created_at, runs.c.id)).all()
    return [_kept(connection, row) for row in found]


def _kept(connection: Connection, row: rows.FoundRow) -> KeptRecord:
    body = contents.whole_one(connection, row.tenant, row.body)
    return KeptRecord(**{**row._mapping, "body": body})


def kept_run(connection: Connection, tenant: str, run_id: str, owner: int | None) -> KeptRecord | None:
    """What is saved of one run, with its events: of one that ended, or, with `owner`, that goes on as that owner's."""
    kept, runs = schema.kept_runs, schema.runs
    ended = kept.c.ended_at.is_not(None) if owner is None else and_(runs.c.owner == owner, kept.c.ended_at.is_(None))
    query = _KEPT.where(kept.c.tenant == tenant, kept.c.run_id == run_id, ended).order_by(runs.c.created_at.desc())
    row = connection.execute(query.limit(1)).first()
    if row is None:
        return None
    record = _kept(connection, row)
    return msgspec.structs.replace(record, packed=_events(connection, record))


def _events(connection: Connection, record: KeptRecord) -> tuple[bytes, ...]:
    return tuple(connection.scalars(_EVENTS, bound(record.tenant, record.thread_id, of_run=record.run_id)))


def goes_on(connection: Connection, tenant: str, run_id: str) -> bool:
    """Whether a run of that id is kept that has not ended."""
    query = _KEPT.where(schema.kept_runs.c.tenant == tenant, schema.kept_runs.c.run_id == run_id)
    query = query.where(schema.runs.c.status.in_(UNFINISHED), schema.kept_runs.c.ended_at.is_(None))
    return connection.execute(query.limit(1)).first() is not None


def keep_run(connection: Connection, tenant: str, thread_id: str, run_id: str, body: str) -> None:
    """Keep what a run begins with, in the place of what an earlier one of its id has left."""
    text, found = contents.parted(body)
    row = {
        "tenant": tenant, "thread_id": thread_id, "run_id": run_id, "body": text, "attempts": 0, "progress": 0,
        "ended_at": None,
    }  # fmt: skip
    rows.upsert(connection, schema.kept_runs, [row], ["body", "ended_at"])
    contents.keep(connection, schema.thread_contents, tenant, thread_id, found)


def forget_events(connection: Connection, tenant: str, thread_id: str, run_id: str) -> None:
    connection.execute(_FORGET_EVENTS, bound(tenant, thread_id, of_run=run_id))


def save_events(connection: Connection, saved: Sequence[SavedEvents], owner: int) -> list[bool]:
    """Save what runs of this owner's have said since; of each, whether it is still the owner's. What is not is left
    out."""
    keys = [bound(each.tenant, each.thread_id, of_run=each.run_id, own=owner) for each in saved]
    added = [
        {**key, "new_number": each.number, "new_packed": each.packed}
        for key, each in zip(keys, saved, strict=True)
        if each.packed
    ]
    count = connection.execute(_adding(connection.dialect.name), added).rowcount if added else 0
    if count == len(saved):
        held = [True] * count
    else:  # not all of them added events, one is another owner's, or the driver does not count
        held = [is_held(connection, each.tenant, each.thread_id, each.run_id, owner) for each in saved]
    for each, is_mine in zip(saved, held, strict=True):
        if is_mine and each.body is not None:
            text, found = contents.parted(each.body)
            connection.execute(_END_KEPT, {**bound(each.tenant, each.thread_id, of_run=each.run_id), "body": text})
            contents.keep(connection, schema.thread_contents, each.tenant, each.thread_id, found)
    return held


@lru_cache(maxsize=2)
def _adding(dialect: str) -> Any:
    """Adds events to runs that are the owner's, and holds them as `is_held` does: one statement, for there is a row for
    each running run at every save."""
    runs, events = schema.runs, schema.run_events.c
    new = bindparam("new_number", type_=events.number.type), bindparam("new_packed", type_=events.packed.type)
    held = select(runs.c.tenant, runs.c.thread_id, runs.c.id, *new).where(_HELD).with_for_update(of=runs)
    return rows.upserting(dialect, schema.run_events, ("packed",)).from_select(list(events.keys()), held)


def last_ended(connection: Connection, tenant: str, thread_id: str, since: int, besides: str) -> KeptRecord | None:
    """The thread's latest run but one of that id, if it ended after that time; without its events."""
    runs = schema.runs
    latest = select(runs.c.id).where(of(runs, tenant, thread_id), runs.c.id != besides)
    latest = latest.order_by(runs.c.created_at.desc(), runs.c.id.desc())
    query = _KEPT.where(of(runs, tenant, thread_id), runs.c.id == latest.limit(1).scalar_subquery())
    row = connection.execute(query.where(schema.kept_runs.c.ended_at >= since)).first()
    return None if row is None else _kept(connection, row)


def join_run(connection: Connection, tenant: str, thread_id: str, run_id: str, body: str, until: int) -> None:
    """Keep that a run follows another. It is no run of its own, so `runs` has none of that id."""
    row = {
        "tenant": tenant, "thread_id": thread_id, "run_id": run_id, "body": body, "attempts": 0, "progress": 0,
        "ended_at": until,
    }  # fmt: skip
    rows.upsert(connection, schema.kept_runs, [row], ["body", "ended_at"])


def joined_run(connection: Connection, tenant: str, run_id: str) -> str | None:
    kept, runs = schema.kept_runs, schema.runs
    own = exists().where(runs.c.tenant == tenant, runs.c.thread_id == kept.c.thread_id, runs.c.id == run_id)
    query = select(kept.c.body).where(kept.c.tenant == tenant, kept.c.run_id == run_id, not_(own))
    body: str | None = connection.scalar(query.limit(1))
    return body


def forget_ended(connection: Connection, before: int) -> None:
    """Forget what was saved of runs that ended before a time in milliseconds: they are replayed no longer."""
    kept = schema.kept_runs
    ended = select(kept.c.tenant, kept.c.thread_id, kept.c.run_id).where(kept.c.ended_at < before).limit(FORGET_SLICE)
    for row in connection.execute(ended).all():
        key = bound(row.tenant, row.thread_id, of_run=row.run_id)
        connection.execute(_FORGET_EVENTS, key)
        connection.execute(_FORGET, key)


def take_up(connection: Connection, record: KeptRecord, owner: int) -> KeptRecord | None:
    """Make a kept run this owner's; None if it is not its former owner's any more."""
    runs, kept, thread = schema.runs, schema.kept_runs, (record.tenant, record.thread_id)
    this = and_(of(runs, *thread), runs.c.id == record.run_id)
    still = and_(this, runs.c.owner == record.owner, runs.c.status.in_(UNFINISHED))
    if not connection.execute(update(runs).where(still).values(owner=owner, status="running")).rowcount:
        return None
    events = schema.run_events
    ours = and_(of(events, *thread), events.c.run_id == record.run_id)
    reached = int(connection.scalar(select(func.max(events.c.number)).where(ours)) or 0)
    # Whoever gets further each time is not what ends the servers.
    attempts = record.attempts + 1 if reached <= record.progress else 1
    counted = update(kept).where(of(kept, *thread), kept.c.run_id == record.run_id)
    connection.execute(counted.values(attempts=attempts, progress=reached))
    state = connection.scalar(select(schema.threads.c.state).where(of(schema.threads, *thread)))
    found = ThreadState(state=decoded(state), interrupts=questions.load(connection, *thread))
    body = connection.scalar(select(kept.c.body).where(of(kept, *thread), kept.c.run_id == record.run_id))
    body = contents.whole_one(connection, record.tenant, str(body))
    packed = _events(connection, record)
    return msgspec.structs.replace(
        record, attempts=attempts, progress=reached, owner=owner, thread=found, body=body, packed=packed
    )


def give_up(connection: Connection, record: KeptRecord) -> None:
    """Record a kept run as broken, and forget what was kept of it."""
    runs, thread = schema.runs, (record.tenant, record.thread_id)
    still = and_(of(runs, *thread), runs.c.id == record.run_id, runs.c.owner == record.owner)
    still = and_(still, runs.c.status.in_(UNFINISHED))
    if connection.execute(update(runs).where(still).values(status="broken", ended_at=now_ms())).rowcount:
        connection.execute(_FORGET, bound(*thread, of_run=record.run_id))
        connection.execute(_FORGET_EVENTS, bound(*thread, of_run=record.run_id))


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
