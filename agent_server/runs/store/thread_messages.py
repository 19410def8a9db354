"""A thread's messages in the database: additions by runs, explicit edits, and undoing edits.

Each function is part of a transaction and may be repeated (see `Writer`). `edit_rules` decides what a client's messages
add, change and cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, literal, select, update

from adapters.errors import RequestError
from agent_server.runs.store import contents, edit_rules, schema
from agent_server.runs.store.records import Removal, RemovalKind
from agent_server.runs.store.rows import bound, decoded, encoded, now_ms, of, of_bound, upsert
from agent_server.runs.store.sizes import byte_length

MAX_BYTES = 16 * 2**20
"""Limit on a thread's messages, above which no run begins in it: a run reads all of them in one transaction, writes
them into its checkpoint, and holds them several times in memory. No prompt has a quarter of it."""
Wire = dict[str, Any]
Sent = Sequence[Mapping[str, Any]]
_MESSAGES, _REMOVED = schema.messages, schema.removed_messages
_NO_ANSWER = ("user", "activity", *edit_rules.INSTRUCTIONS)
_INDEX = (
    select(_MESSAGES.c.id, _MESSAGES.c.position, _MESSAGES.c.digest)
    .where(of_bound(_MESSAGES))
    .union_all(select(_REMOVED.c.id, literal(-1), literal("")).where(of_bound(_REMOVED), _REMOVED.c.kind == "deleted"))
)
_BODIES = select(_MESSAGES.c.body).where(of_bound(_MESSAGES)).order_by(_MESSAGES.c.position, _MESSAGES.c.id)
_THIS = and_(of_bound(_MESSAGES), _MESSAGES.c.id == bindparam("of_id"))
_MOVE = update(_MESSAGES).where(_THIS).values(position=bindparam("new_position"))
_RENAME = update(_MESSAGES).where(_THIS).values(id=bindparam("new_id"), body=bindparam("new_body"))
_RENAME_FEEDBACK = (
    update(schema.feedback)
    .where(of_bound(schema.feedback), schema.feedback.c.message_id == bindparam("of_id"))
    .values(message_id=bindparam("new_id"))
)


class Thread:
    """One thread's messages within a transaction. order: the ids in order. aside: how many messages an edit set
    aside."""

    def __init__(self, connection: Connection, tenant: str, thread_id: str) -> None:
        self._connection = connection
        self._key = tenant, thread_id
        self.order: list[str] = []
        self._positions: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._deleted: set[str] = set()
        self.aside = 0

    @classmethod
    def read(cls, connection: Connection, tenant: str, thread_id: str) -> Thread:
        thread = cls(connection, tenant, thread_id)
        index = connection.execute(_INDEX, bound(tenant, thread_id)).all()
        thread._deleted = {row.id for row in index if row.position < 0}
        stored = sorted((row.position, row.id, row.digest) for row in index if row.position >= 0)
        thread.order = [id for _, id, _ in stored]
        thread._positions = {id: position for position, id, _ in stored}
        thread._digests = {id: digest for _, id, digest in stored}
        return thread

    def bodies(self) -> list[Wire]:
        """Return all messages in order, as they were before this transaction's first write."""
        return load(self._connection, *self._key)

    def bodies_of(self, ids: Iterable[str]) -> dict[str, str]:
        unique_ids = sorted(set(ids))
        if not unique_ids:
            return {}
        of_ids = _MESSAGES.c.id.in_(unique_ids)
        query = select(_MESSAGES.c.id, _MESSAGES.c.body).where(of(_MESSAGES, *self._key), of_ids)
        stored = {row.id: row.body for row in self._connection.execute(query)}
        return dict(zip(stored, contents.whole(self._connection, self._key[0], [*stored.values()]), strict=True))

    def answers(self, ids: Collection[str]) -> set[str]:
        """Return the ids of those messages that are neither a user's nor instructions."""
        query = select(_MESSAGES.c.id, _MESSAGES.c.body).where(of(_MESSAGES, *self._key), _MESSAGES.c.id.in_(ids))
        rows = self._connection.execute(query).all()
        roles = {row.id: decoded(contents.without_marks(row.body)).get("role") for row in rows}
        return {id for id, role in roles.items() if role not in ("user", *edit_rules.INSTRUCTIONS)}

    def _parted(self, bodies: Mapping[str, str]) -> dict[str, str]:
        """Take the larger files out of message bodies and store them. Return the bodies to be written."""
        parted = {id: contents.parted(body) for id, body in bodies.items()}
        files = {digest: file for each in parted.values() for digest, file in each.contents.items()}
        contents.keep(self._connection, schema.thread_contents, *self._key, files)
        return {id: each.text for id, each in parted.items()}

    def accepted(self, sent: Sent) -> list[Mapping[str, Any]]:
        """Return a client's messages, each id once, without messages that were deleted here: a browser tab that still
        has a deleted message must not restore it."""
        unique = {str(message["id"]): message for message in sent}
        return [message for id, message in unique.items() if id in self._digests or id not in self._deleted]

    def in_stored_form(self, sent: Sent) -> Sent:
        """Return a client's messages with those that it made of stored answers replaced by these, see `edit_rules`.

        A client whose messages are all unknown has renamed them, see `renamed_ids`.
        """
        if not _recognised(sent, self.order):
            return sent
        known = all(str(each["id"]) in self._digests or each.get("role") in _NO_ANSWER for each in sent[:-1])
        return sent if known else edit_rules.in_stored_form(self.bodies(), sent)

    def rename(self, new_ids: Mapping[str, str], stored: Sequence[Wire]) -> None:
        """Give messages and their feedback the ids that a client uses for them."""
        bodies = {each["id"]: _text({**each, "id": new_ids[each["id"]]}) for each in stored if each["id"] in new_ids}
        changes = [{**bound(*self._key), "of_id": old, "new_id": new} for old, new in new_ids.items()]
        parted = self._parted(bodies)
        updates = [{**each, "new_body": parted[each["of_id"]]} for each in changes]
        self._connection.execute(_RENAME, updates)
        self._connection.execute(_RENAME_FEEDBACK, changes)
        self.order = [new_ids.get(id, id) for id in self.order]
        self._positions = {new_ids.get(id, id): position for id, position in self._positions.items()}
        self._digests = {new_ids.get(id, id): digest for id, digest in self._digests.items()}

    def edited(self, sent: Sent) -> dict[str, str]:
        """Return the stored bodies, by id, of messages that the client sends with another meaning."""
        suspects = [
            message
            for message in sent
            if (digest := self._digests.get(str(message["id"]))) is not None and digest != digest_of(_text(message))
        ]
        stored = self.bodies_of(str(message["id"]) for message in suspects)
        return {
            id: body
            for message in suspects
            if not edit_rules.is_unchanged(decoded(body := stored[(id := str(message["id"]))]), message)
        }

    def set_aside(self, bodies: Mapping[str, str], kind: RemovalKind, removal: str) -> None:
        """Store messages as one removal. The caller then removes or replaces them in the thread."""
        if not bodies:
            return
        self.aside += len(bodies)
        places = {id: place for place, id in enumerate(self.order)}
        moment = now_ms()
        parted = self._parted(bodies)
        rows = [
            {
                "tenant": self._key[0], "thread_id": self._key[1], "removal": removal, "id": id, "kind": kind,
                "place": place, "after_id": self.order[places[id] - 1] if places[id] else None, "body": parted[id],
                "removed_at": moment,
            }
            for place, id in enumerate(sorted(bodies, key=lambda id: places[id]))
        ]  # fmt: skip
        upsert(self._connection, _REMOVED, rows, ["body"])

    def take_out(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        removed = and_(of(_MESSAGES, *self._key), _MESSAGES.c.id.in_(sorted(ids)))
        self._connection.execute(delete(_MESSAGES).where(removed))
        self.order = [id for id in self.order if id not in set(ids)]

    def write(self, order: Sequence[str], bodies: Mapping[str, str]) -> None:
        """Write the thread's order. bodies: of new and changed messages, by id."""
        rows, moves = [], []
        parted = self._parted({id: bodies[id] for id in order if id in bodies})
        for position, id in enumerate(order):
            if (body := bodies.get(id)) is not None:
                rows.append(
                    {"tenant": self._key[0], "thread_id": self._key[1], "id": id, "position": position,
                     "digest": digest_of(body), "body": parted[id]}
                )  # fmt: skip
            elif self._positions[id] != position:
                moves.append({**bound(*self._key), "of_id": id, "new_position": position})
        upsert(self._connection, _MESSAGES, rows, ["position", "digest", "body"])
        if moves:
            self._connection.execute(_MOVE, moves)
        self.order = list(order)


def check_size(connection: Connection, tenant: str, thread_id: str) -> None:
    """Raise RequestError("payload_too_large") for a thread whose messages are too large together, without files."""
    total = func.coalesce(func.sum(byte_length(connection, _MESSAGES.c.body)), 0)
    size = int(connection.scalar(select(total).where(of(_MESSAGES, tenant, thread_id))) or 0)
    if size > MAX_BYTES:
        message = f"The thread's messages have {size} bytes; the limit is {MAX_BYTES}."
        message = f"{message} Delete some, continue in a branch that ends before them, or start another thread."
        raise RequestError("payload_too_large", message, "threadId")


def take(thread: Thread, sent: Sent, removal: str, *, edits: bool) -> None:
    """Store a client's messages in the thread, before its run.

    edits: if the last message is already stored, it is answered again, and the messages after it are set aside under
    the id `removal`.
    """
    messages = thread.in_stored_form(thread.accepted(sent))
    ids = [str(message["id"]) for message in messages]
    changed = thread.edited(messages)
    cut_off = edit_rules.cut_off(thread.order, messages) if edits else None
    if cut_off is not None:  # with the former version of the message that is answered again, if it was changed
        kind: RemovalKind = "edited" if changed else "regenerated"
        thread.set_aside({**thread.bodies_of(cut_off), **changed}, kind, removal)
        thread.take_out(cut_off)
    elif changed:
        thread.set_aside(changed, "changed", removal)
    unchanged = set(thread.order) - set(changed)
    new = {id: _text(each) for id, each in zip(ids, messages, strict=True) if id not in unchanged}
    thread.write(edit_rules.order_before_run(thread.order, ids), new)


def _recognised(sent: Sent, stored: Sequence[str]) -> bool:
    """Return whether a client sends a stored message other than instructions."""
    stored_ids = set(stored)
    return any(str(each["id"]) in stored_ids and each.get("role") not in edit_rules.INSTRUCTIONS for each in sent)


def follow_renaming(thread: Thread, sent: Sent) -> None:
    """Give the thread's messages the ids under which a client sends them, if it knows none of theirs."""
    messages = thread.accepted(sent)
    if thread.order and messages and not _recognised(messages, thread.order):
        stored = thread.bodies()
        if new_ids := edit_rules.renamed_ids(stored, messages):
            thread.rename(new_ids, stored)


def recall(thread: Thread, sent: Sent) -> tuple[Wire, ...]:
    """Return the thread merged with a client's messages, up to the last of these; () if the client sends the history
    itself or there is none. A history that the client sends in another form is returned in the stored one."""
    accepted = thread.accepted(sent)
    messages = thread.in_stored_form(accepted)
    if not thread.order or edit_rules.sends_history(messages, thread.order):
        return () if messages == accepted else tuple(map(dict, messages))
    stored = thread.bodies()
    bodies = {str(message["id"]): dict(message) for message in [*stored, *messages]}
    order = edit_rules.order_before_run([str(each["id"]) for each in stored], [str(each["id"]) for each in messages])
    end = order.index(str(messages[-1]["id"])) + 1 if messages else len(order)
    return tuple(bodies[id] for id in order[:end])


def add(connection: Connection, tenant: str, thread_id: str, run_messages: Sent) -> None:
    """Store a run's new messages in its thread, each after the message that it follows."""
    thread = Thread.read(connection, tenant, thread_id)
    messages = thread.accepted(run_messages)
    stored_ids = set(thread.order)
    new = {str(each["id"]): _text(each) for each in messages if str(each["id"]) not in stored_ids}
    if not new:
        return
    ids = [str(each["id"]) for each in messages]
    answers = thread.answers(stored_ids - set(ids))
    thread.write(edit_rules.order_after_run(thread.order, ids, answers.__contains__), new)


def load(connection: Connection, tenant: str, thread_id: str) -> list[Wire]:
    bodies = connection.scalars(_BODIES, bound(tenant, thread_id))
    return [decoded(body) for body in contents.whole(connection, tenant, bodies.all())]


def copy(connection: Connection, tenant: str, thread_id: str, message_id: str, copy_id: str) -> None:
    """Copy a thread's messages up to one of them and its dependent messages. Raises RequestError("not_found")."""
    bodies = {str(each["id"]): each for each in load(connection, tenant, thread_id)}
    order = list(bodies)
    group = _with_dependents(bodies, _check_exists(message_id, bodies))
    copied = order[: 1 + max(order.index(id) for id in group)]
    other = Thread.read(connection, tenant, copy_id)
    other.write(copied, {id: _text(bodies[id]) for id in copied})


def _check_exists(message_id: str, ids: Container[str]) -> str:
    if message_id not in ids:
        raise RequestError("not_found", "There is no such message in this thread.", "messageId")
    return message_id


def remove(connection: Connection, tenant: str, thread_id: str, message_id: str, removal: str) -> None:
    """Delete a message with its dependent messages on a person's request. Raises RequestError("not_found")."""
    thread = Thread.read(connection, tenant, thread_id)
    bodies = {str(each["id"]): each for each in thread.bodies()}
    group = _with_dependents(bodies, _check_exists(message_id, bodies))
    thread.set_aside({id: _text(bodies[id]) for id in group}, "deleted", removal)
    thread.take_out(group)


def _with_dependents(bodies: Mapping[str, Wire], message_id: str) -> list[str]:
    """Return the ids of a message, the results of its calls, and the activities that follow any of them."""
    calls = {call["id"] for call in bodies[message_id].get("toolCalls") or ()}
    group: list[str] = []
    in_group = False
    for id, each in bodies.items():
        is_activity = in_group and each.get("role") == "activity"
        in_group = is_activity or id == message_id or each.get("toolCallId") in calls
        group += [id] if in_group else []
    return group


def removals(connection: Connection, tenant: str, thread_id: str) -> list[Removal]:
    """Return the messages that edits removed, latest edit first."""
    query = select(_REMOVED).where(of(_REMOVED, tenant, thread_id))
    rows = connection.execute(query.order_by(_REMOVED.c.removed_at.desc(), _REMOVED.c.removal)).all()
    bodies = contents.whole(connection, tenant, [row.body for row in rows])
    groups: dict[str, list[tuple[Any, str]]] = {}
    for row, body in zip(rows, bodies, strict=True):
        groups.setdefault(row.removal, []).append((row, body))
    result = []
    for group in groups.values():
        group.sort(key=lambda each: each[0].place)
        first = group[0][0]
        result.append(
            Removal(
                id=first.removal,
                kind=first.kind,
                after_id=first.after_id,
                removed_at=first.removed_at,
                messages=[decoded(body) for _, body in group],
            )
        )
    return result


def restore(connection: Connection, tenant: str, thread_id: str, removal: str, swapped: str) -> None:
    """Restore the messages that an edit removed. Raises RequestError("not_found").

    Deleted messages return to their positions. Former versions and former answers replace the current ones, which are
    set aside under the id `swapped`.
    """
    this = and_(of(_REMOVED, tenant, thread_id), _REMOVED.c.removal == removal)
    rows = connection.execute(select(_REMOVED).where(this).order_by(_REMOVED.c.place)).all()
    if not rows:
        raise RequestError("not_found", f"This thread has no removal {removal[:80]!r} to restore.", "removalId")
    connection.execute(delete(_REMOVED).where(this))
    thread = Thread.read(connection, tenant, thread_id)
    restored = {row.id for row in rows}
    kind: RemovalKind = rows[0].kind
    if kind in ("regenerated", "edited"):
        start = thread.order.index(rows[0].after_id) + 1 if rows[0].after_id in thread.order else 0
        replaced = thread.order[start:]
    else:
        replaced = [id for id in thread.order if id in restored]
    thread.set_aside(thread.bodies_of(replaced), kind, swapped)
    if kind in ("regenerated", "edited"):
        thread.take_out(replaced)
    order = list(thread.order)
    for row in rows:
        if row.id not in order:
            order.insert(order.index(row.after_id) + 1 if row.after_id in order else 0, row.id)
    bodies = contents.whole(connection, tenant, [row.body for row in rows])
    thread.write(order, dict(zip((row.id for row in rows), bodies, strict=True)))


def _text(message: Mapping[str, Any]) -> str:
    return encoded(message) or ""


def digest_of(body: str) -> str:
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
