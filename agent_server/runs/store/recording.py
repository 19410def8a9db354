"""Runs in the store: their beginning, saved events, resumption and end.

Each function is part of a transaction and may be repeated (see `Writer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, and_, bindparam, delete, exists, func, not_, or_, select, update

from agent_server.runs.store import contents, questions, rows, schema, thread_messages
from agent_server.runs.store.connections import Superseded
from agent_server.runs.store.records import Conclusion, KeptRecord, RunStatus, SavedEvents, ThreadState
from agent_server.runs.store.rows import bound, decoded, encoded, now_ms, of, of_bound
from events.vocabulary import CancelledOutcome, Event, InterruptOutcome, RunError, RunFinished

NAME_LENGTH = 80
NAME_SOURCE = 4096
"""Characters of a message from which its thread's name is made."""
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
# Not `status IN (...)`, which SQLAlchemy expands for every execution.
_IS_UNFINISHED = or_(*(schema.runs.c.status == status for status in UNFINISHED))
_OWNED = and_(_RUN, schema.runs.c.owner == bindparam("own"), _IS_UNFINISHED)
_CHANGE_RUN = update(schema.runs).where(_OWNED)
_IS_KNOWN = select(schema.runs.c.id).where(_RUN)
_FENCE = select(schema.runs.c.id).where(_OWNED).with_for_update()
_FENCE_SQLITE = update(schema.runs).where(_OWNED).values(owner=schema.runs.c.owner)
_EVENTS = select(schema.run_events.c.packed).where(_OF_EVENTS).order_by(schema.run_events.c.number)


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A new run. run: a row of `runs`. key: the key that owns the thread if the run creates it. messages: the client's,
    in wire form. removal: the id for messages that an edit removes. edits: the messages may edit the history. recall:
    the client may leave out stored messages. body: the checkpoint from which the run can be resumed."""

    run: dict[str, Any]
    key: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    removal: str = ""
    edits: bool = False
    recall: bool = False
    body: str | None = None

    def write(self, connection: Connection) -> ThreadState:
        """Store the run and create its thread if needed. Return the thread as it was before. Raises RequestError if the
        thread has become too large.

        In a thread with an open interrupt the messages are not stored yet, since the input may be refused; only their
        ids are taken over.
        """
        run, thread = self.run, (self.run["tenant"], self.run["thread_id"])
        thread_messages.check_size(connection, *thread)
        # Create the thread if it is new, otherwise update its time.
        name, now = name_from(self.messages), now_ms()
        row = {
            "tenant": run["tenant"], "id": run["thread_id"], "name": name, "agent_id": run["agent"], "archived": False,
            "state": None, "metadata": "{}", "created_at": now, "updated_at": now, "key": self.key,
        }  # fmt: skip
        entered = connection.execute(_entering(connection.dialect.name), row).one()
        if name and not entered.name:
            connection.execute(_NAME_THREAD, bound(*thread, new_name=name))
        interrupts = questions.load(connection, *thread)
        owners = tuple(connection.scalars(_OTHER_OWNERS, bound(*thread, own=run["owner"])))
        changed = [column for column in run if column not in ("tenant", "thread_id", "id")]
        rows.upsert(connection, schema.runs, [run], changed)
        if self.body is not None:
            forget_events(connection, *thread, run["id"])
            keep_run(connection, *thread, run["id"], self.body)
        messages = thread_messages.Thread.read(connection, *thread)
        thread_messages.follow_renaming(messages, self.messages)
        recalled = thread_messages.recall(messages, self.messages) if self.recall else ()
        if self.messages and not any(each.status == "open" for each in interrupts):
            thread_messages.take(messages, self.messages, self.removal, edits=self.edits)
        return ThreadState(
            state=decoded(entered.state), messages=recalled, interrupts=interrupts, owners=owners, edited=messages.aside
        )


@lru_cache(maxsize=2)
def _entering(dialect: str) -> Any:
    table = schema.threads
    return rows.upserting(dialect, table, ("updated_at",)).returning(table.c.state, table.c.name)


BRANCH = " (branch)"


def branch(connection: Connection, tenant: str, thread_id: str, message_id: str, branch_id: str) -> bool:
    """Copy a thread up to a message into a new one, with its agent, state and metadata. Return False if there is no
    such thread. Raises RequestError("not_found") if it has no such message."""
    table = schema.threads
    original = connection.execute(select(table).where(of(table, tenant, thread_id))).mappings().first()
    if original is None:
        return False
    now = now_ms()
    name = f"{original['name'].removesuffix(BRANCH)}{BRANCH}" if original["name"] else ""
    row = {**original, "id": branch_id, "name": name, "archived": False, "created_at": now, "updated_at": now}
    rows.upsert(connection, table, [row], ["updated_at"])
    thread_messages.copy(connection, tenant, thread_id, message_id, branch_id)
    return True


def is_owned(connection: Connection, tenant: str, thread_id: str, run_id: str, owner: int) -> bool:
    """Return whether the run is unfinished and belongs to `owner`, and lock it until the transaction ends.

    The owner's number is the run's fencing token: it changes when another server resumes the run.
    """
    key = bound(tenant, thread_id, of_run=run_id, own=owner)
    if connection.dialect.name == "sqlite":  # its driver begins a transaction only with the first write
        return bool(connection.execute(_FENCE_SQLITE, key).rowcount)
    return connection.scalar(_FENCE, key) is not None


def fence(connection: Connection, tenant: str, thread_id: str, run_id: str, owner: int) -> None:
    """Raise Superseded for a run that has another owner or has ended, but not for a deleted one."""
    if is_owned(connection, tenant, thread_id, run_id, owner):
        return
    if connection.scalar(_IS_KNOWN, bound(tenant, thread_id, of_run=run_id)) is not None:
        raise Superseded


def conclude(connection: Connection, ended: Conclusion, at: int, owner: int) -> None:
    """Record the end of a run of `owner`, at that time in milliseconds since the epoch. Raises Superseded."""
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
    if ended.saved is not None:
        _end_kept(connection, ended.saved, at)
    if ended.messages:
        thread_messages.add(connection, *thread, ended.messages)
    if status == "interrupted":
        questions.ask(connection, ended)


def is_followed(connection: Connection, ended: Conclusion) -> bool:
    """Return whether another run has begun in the thread after this one."""
    runs = schema.runs
    mine = select(runs.c.created_at).where(of(runs, ended.tenant, ended.thread_id), runs.c.id == ended.run_id)
    later = select(runs.c.id).where(
        of(runs, ended.tenant, ended.thread_id), runs.c.id != ended.run_id, runs.c.created_at >= mine.scalar_subquery()
    )
    return connection.scalar(later.limit(1)) is not None


def status_of(terminal: Event) -> tuple[RunStatus, str | None]:
    """Return a run's status and error code for its terminal event."""
    if isinstance(terminal, RunError):
        return "failed", terminal.code
    outcome = terminal.outcome if isinstance(terminal, RunFinished) else None
    if isinstance(outcome, InterruptOutcome):
        return "interrupted", None
    return ("cancelled" if isinstance(outcome, CancelledOutcome) else "finished"), None


def refuse(connection: Connection, run: Mapping[str, Any]) -> None:
    """Mark a stored run that must not begin as failed."""
    table = schema.runs
    this = and_(of(table, run["tenant"], run["thread_id"]), table.c.id == run["id"])
    connection.execute(update(table).where(this).values(status="failed", error="conflict", ended_at=now_ms()))


def mark_broken(connection: Connection, owners: Sequence[int], thread: tuple[str, str] | None = None) -> None:
    """Mark runs of servers that died as broken. Runs that can be resumed are marked only in `thread`, where another run
    begins instead."""
    runs, saved_runs = schema.runs, schema.kept_runs
    is_kept = exists().where(
        saved_runs.c.tenant == runs.c.tenant, saved_runs.c.thread_id == runs.c.thread_id,
        saved_runs.c.run_id == runs.c.id, saved_runs.c.ended_at.is_(None),
    )  # fmt: skip
    markable = not_(is_kept) if thread is None else or_(not_(is_kept), of(runs, *thread))
    where = and_(runs.c.status.in_(UNFINISHED), runs.c.owner.in_(owners), markable)
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
    """Return the resumable runs of servers that died, oldest first. thread: only those of this thread."""
    runs = schema.runs
    query = _KEPT.where(runs.c.status.in_(UNFINISHED), runs.c.owner.in_(owners), schema.kept_runs.c.ended_at.is_(None))
    if thread is not None:
        query = query.where(of(runs, *thread))
    orphans = connection.execute(query.order_by(runs.c.created_at, runs.c.id)).all()
    return [_record(connection, row) for row in orphans]


def _record(connection: Connection, row: rows.QueryRow) -> KeptRecord:
    body = contents.whole_one(connection, row.tenant, row.body)
    return KeptRecord(**{**row._mapping, "body": body})


def kept_run(connection: Connection, tenant: str, run_id: str, owner: int | None) -> KeptRecord | None:
    """Return one saved run with its events: a finished one, or with `owner` an unfinished one of that owner."""
    saved_runs, runs = schema.kept_runs, schema.runs
    ended = (
        saved_runs.c.ended_at.is_not(None)
        if owner is None
        else and_(runs.c.owner == owner, saved_runs.c.ended_at.is_(None))
    )
    query = _KEPT.where(saved_runs.c.tenant == tenant, saved_runs.c.run_id == run_id, ended).order_by(
        runs.c.created_at.desc()
    )
    row = connection.execute(query.limit(1)).first()
    if row is None:
        return None
    record = _record(connection, row)
    return msgspec.structs.replace(record, packed=_events(connection, record))


def _events(connection: Connection, record: KeptRecord) -> tuple[bytes, ...]:
    return tuple(connection.scalars(_EVENTS, bound(record.tenant, record.thread_id, of_run=record.run_id)))


def is_unfinished(connection: Connection, tenant: str, run_id: str) -> bool:
    """Return whether an unfinished run with that id is saved."""
    query = _KEPT.where(schema.kept_runs.c.tenant == tenant, schema.kept_runs.c.run_id == run_id)
    query = query.where(schema.runs.c.status.in_(UNFINISHED), schema.kept_runs.c.ended_at.is_(None))
    return connection.execute(query.limit(1)).first() is not None


def keep_run(connection: Connection, tenant: str, thread_id: str, run_id: str, body: str) -> None:
    """Save a run's first checkpoint, replacing what an earlier run with its id has left."""
    text, files = contents.parted(body)
    row = {
        "tenant": tenant, "thread_id": thread_id, "run_id": run_id, "body": text, "attempts": 0, "progress": 0,
        "ended_at": None,
    }  # fmt: skip
    rows.upsert(connection, schema.kept_runs, [row], ["body", "ended_at"])
    contents.keep(connection, schema.thread_contents, tenant, thread_id, files)


def forget_events(connection: Connection, tenant: str, thread_id: str, run_id: str) -> None:
    connection.execute(_FORGET_EVENTS, bound(tenant, thread_id, of_run=run_id))


def save_events(connection: Connection, saved: Sequence[SavedEvents], owner: int) -> list[bool]:
    """Save new events of runs. Return for each whether it still belongs to `owner`; those that do not are not saved."""
    sql, names, constants = _adding(connection.dialect)
    added = [tuple(map({**constants, **_added(each, owner)}.__getitem__, names)) for each in saved if each.packed]
    count = connection.exec_driver_sql(sql, added).rowcount if added else 0
    if count == len(saved):
        owned = [True] * count
    else:  # not all of them added events, one has another owner, or the driver does not count rows
        owned = [is_owned(connection, each.tenant, each.thread_id, each.run_id, owner) for each in saved]
    for each, is_own in zip(saved, owned, strict=True):
        if is_own and each.body is not None:
            text, files = contents.parted(each.body)
            connection.execute(_END_KEPT, {**bound(each.tenant, each.thread_id, of_run=each.run_id), "body": text})
            contents.keep(connection, schema.thread_contents, each.tenant, each.thread_id, files)
    return owned


def _added(saved: SavedEvents, owner: int) -> dict[str, object]:
    """Return the parameters of a row that `_adding` adds."""
    new = {"new_number": saved.number, "new_packed": saved.packed}
    return bound(saved.tenant, saved.thread_id, of_run=saved.run_id, own=owner, **new)


@lru_cache(maxsize=2)
def _adding(dialect: Dialect) -> tuple[str, Sequence[str], Mapping[str, object]]:
    """Compile the statement that adds events to the owner's runs and locks them as `is_owned` does. Return it with the
    names of its parameters, in order, and the values of those that are constant.

    It is one statement, and compiled once, because every save has a row for each active run: SQLAlchemy takes as long
    to prepare a row's parameters as SQLite takes to insert the row.
    """
    runs, events = schema.runs, schema.run_events.c
    new = bindparam("new_number", type_=events.number.type), bindparam("new_packed", type_=events.packed.type)
    owned = select(runs.c.tenant, runs.c.thread_id, runs.c.id, *new).where(_OWNED).with_for_update(of=runs)
    statement = rows.upserting(dialect.name, schema.run_events, ("packed",)).from_select(list(events.keys()), owned)
    compiled = statement.compile(dialect=dialect)
    return str(compiled), compiled.positiontup, compiled.params


def last_ended(connection: Connection, tenant: str, thread_id: str, since: int, except_run: str) -> KeptRecord | None:
    """Return the thread's latest run other than `except_run`, without its events, if it ended after `since`."""
    runs = schema.runs
    latest = select(runs.c.id).where(of(runs, tenant, thread_id), runs.c.id != except_run)
    latest = latest.order_by(runs.c.created_at.desc(), runs.c.id.desc())
    query = _KEPT.where(of(runs, tenant, thread_id), runs.c.id == latest.limit(1).scalar_subquery())
    row = connection.execute(query.where(schema.kept_runs.c.ended_at >= since)).first()
    return None if row is None else _record(connection, row)


def join_run(connection: Connection, tenant: str, thread_id: str, run_id: str, body: str, until: int) -> None:
    """Store that a run follows another one. It has no row of its own in `runs`."""
    row = {
        "tenant": tenant, "thread_id": thread_id, "run_id": run_id, "body": body, "attempts": 0, "progress": 0,
        "ended_at": until,
    }  # fmt: skip
    rows.upsert(connection, schema.kept_runs, [row], ["body", "ended_at"])


def joined_run(connection: Connection, tenant: str, run_id: str) -> str | None:
    saved_runs, runs = schema.kept_runs, schema.runs
    own = exists().where(runs.c.tenant == tenant, runs.c.thread_id == saved_runs.c.thread_id, runs.c.id == run_id)
    query = select(saved_runs.c.body).where(saved_runs.c.tenant == tenant, saved_runs.c.run_id == run_id, not_(own))
    body: str | None = connection.scalar(query.limit(1))
    return body


def forget_ended(connection: Connection, before: int) -> None:
    """Delete what was saved of runs that ended before that time in milliseconds; they can no longer be replayed."""
    saved_runs = schema.kept_runs
    ended = (
        select(saved_runs.c.tenant, saved_runs.c.thread_id, saved_runs.c.run_id)
        .where(saved_runs.c.ended_at < before)
        .limit(FORGET_SLICE)
    )
    for row in connection.execute(ended).all():
        key = bound(row.tenant, row.thread_id, of_run=row.run_id)
        connection.execute(_FORGET_EVENTS, key)
        connection.execute(_FORGET, key)


def claim_orphan(connection: Connection, record: KeptRecord, owner: int) -> KeptRecord | None:
    """Make `owner` the owner of a saved run. Return None if another server was first."""
    runs, saved_runs, thread = schema.runs, schema.kept_runs, (record.tenant, record.thread_id)
    this = and_(of(runs, *thread), runs.c.id == record.run_id)
    still = and_(this, runs.c.owner == record.owner, runs.c.status.in_(UNFINISHED))
    if not connection.execute(update(runs).where(still).values(owner=owner, status="running")).rowcount:
        return None
    events = schema.run_events
    ours = and_(of(events, *thread), events.c.run_id == record.run_id)
    progress = int(connection.scalar(select(func.max(events.c.number)).where(ours)) or 0)
    # A run that makes progress with each attempt is not what ends the servers.
    attempts = record.attempts + 1 if progress <= record.progress else 1
    count = update(saved_runs).where(of(saved_runs, *thread), saved_runs.c.run_id == record.run_id)
    connection.execute(count.values(attempts=attempts, progress=progress))
    state = connection.scalar(select(schema.threads.c.state).where(of(schema.threads, *thread)))
    snapshot = ThreadState(state=decoded(state), interrupts=questions.load(connection, *thread))
    body = connection.scalar(
        select(saved_runs.c.body).where(of(saved_runs, *thread), saved_runs.c.run_id == record.run_id)
    )
    body = contents.whole_one(connection, record.tenant, str(body))
    packed = _events(connection, record)
    return msgspec.structs.replace(
        record, attempts=attempts, progress=progress, owner=owner, thread=snapshot, body=body, packed=packed
    )


def give_up(connection: Connection, record: KeptRecord, ending: SavedEvents | None) -> None:
    """Mark a saved run as broken and save its last events; without them, delete its checkpoint and events."""
    runs, thread = schema.runs, (record.tenant, record.thread_id)
    still = and_(of(runs, *thread), runs.c.id == record.run_id, runs.c.owner == record.owner)
    still = and_(still, runs.c.status.in_(UNFINISHED))
    at = now_ms()
    if not connection.execute(update(runs).where(still).values(status="broken", ended_at=at)).rowcount:
        return
    if ending is not None:
        _end_kept(connection, ending, at)
    else:
        connection.execute(_FORGET, bound(*thread, of_run=record.run_id))
        connection.execute(_FORGET_EVENTS, bound(*thread, of_run=record.run_id))


def _end_kept(connection: Connection, ending: SavedEvents, at: int) -> None:
    """Save the last events of a run that ended at that time in milliseconds, so that it can be replayed."""
    if ending.packed:
        added = {name: getattr(ending, name) for name in map(str, schema.run_events.c.keys())}
        rows.upsert(connection, schema.run_events, [added], ["packed"])
    key = bound(ending.tenant, ending.thread_id, of_run=ending.run_id)
    connection.execute(_END_KEPT, {**key, "body": ending.body or "", "ended_at": at})


def name_from(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a thread's initial name: the beginning of its first user message."""
    for message in messages:
        content = message.get("content")
        if message.get("role") != "user":
            continue
        if isinstance(content, list):
            content = next((part.get("text") for part in content if part.get("type") == "text"), "")
        start = str(content or "").lstrip()[:NAME_SOURCE]  # splitting a long text would delay other writes
        return clean(" ".join(start.split()), NAME_LENGTH)
    return ""


def clean(text: str, length: int = 512) -> str:
    return text.replace("\x00", "")[:length]
