"""A thread's messages in the database: what runs add to them, what an explicit edit takes away, and having it back.

Each function is one part of a transaction, and repeatable (see `Writer`). `history` has the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, literal, select, update

from adapters.errors import RequestError
from agent_server.runs.store import contents, history, schema
from agent_server.runs.store.records import Removal, RemovalKind
from agent_server.runs.store.rows import bound, decoded, encoded, now_ms, of, of_bound, upsert

Wire = dict[str, Any]
Given = Sequence[Mapping[str, Any]]
_MESSAGES, _REMOVED = schema.messages, schema.removed_messages
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
    """One thread's messages within a transaction: `order`, ids as they stand, what is known of each, and how many
    were set `aside`."""

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
        found = connection.execute(_INDEX, bound(tenant, thread_id)).all()
        thread._deleted = {row.id for row in found if row.position < 0}
        stored = sorted((row.position, row.id, row.digest) for row in found if row.position >= 0)
        thread.order = [id for _, id, _ in stored]
        thread._positions = {id: position for position, id, _ in stored}
        thread._digests = {id: digest for _, id, digest in stored}
        return thread

    def bodies(self) -> list[Wire]:
        """Every message in order, as it was when the transaction began to write."""
        return load(self._connection, *self._key)

    def bodies_of(self, ids: Iterable[str]) -> dict[str, str]:
        wanted = sorted(set(ids))
        if not wanted:
            return {}
        query = select(_MESSAGES.c.id, _MESSAGES.c.body).where(of(_MESSAGES, *self._key), _MESSAGES.c.id.in_(wanted))
        found = {row.id: row.body for row in self._connection.execute(query)}
        return dict(zip(found, contents.whole(self._connection, self._key[0], [*found.values()]), strict=True))

    def answers(self, ids: Collection[str]) -> set[str]:
        """Those messages that neither ask nor instruct."""
        query = select(_MESSAGES.c.id, _MESSAGES.c.body).where(of(_MESSAGES, *self._key), _MESSAGES.c.id.in_(ids))
        found = self._connection.execute(query).all()
        roles = {row.id: decoded(contents.without_marks(row.body)).get("role") for row in found}
        return {id for id, role in roles.items() if role not in ("user", *history.INSTRUCTIONS)}

    def _parted(self, bodies: Mapping[str, str]) -> dict[str, str]:
        """Message bodies as they are written; their larger files are kept."""
        found = {id: contents.parted(body) for id, body in bodies.items()}
        files = {digest: file for each in found.values() for digest, file in each.contents.items()}
        contents.keep(self._connection, schema.thread_contents, *self._key, files)
        return {id: each.text for id, each in found.items()}

    def wanted(self, given: Given) -> list[Mapping[str, Any]]:
        """What was given, each id once, without what was deleted here: a tab that still shows it brings it not back."""
        unique = {str(message["id"]): message for message in given}
        return [message for id, message in unique.items() if id in self._digests or id not in self._deleted]

    def rename(self, names: Mapping[str, str], stored: Sequence[Wire]) -> None:
        """Give messages the ids under which a client knows them, and their feedback with them."""
        bodies = {each["id"]: _text({**each, "id": names[each["id"]]}) for each in stored if each["id"] in names}
        changes = [{**bound(*self._key), "of_id": old, "new_id": new} for old, new in names.items()]
        parted = self._parted(bodies)
        words = [{**each, "new_body": parted[each["of_id"]]} for each in changes]
        self._connection.execute(_RENAME, words)
        self._connection.execute(_RENAME_FEEDBACK, changes)
        self.order = [names.get(id, id) for id in self.order]
        self._positions = {names.get(id, id): position for id, position in self._positions.items()}
        self._digests = {names.get(id, id): digest for id, digest in self._digests.items()}

    def edited(self, given: Given) -> dict[str, str]:
        """The stored bodies of those messages that are given with another meaning than they have here, by id."""
        suspects = [
            message
            for message in given
            if (digest := self._digests.get(str(message["id"]))) is not None and digest != digest_of(_text(message))
        ]
        stored = self.bodies_of(str(message["id"]) for message in suspects)
        return {
            id: body
            for message in suspects
            if not history.same(decoded(body := stored[(id := str(message["id"]))]), message)
        }

    def set_aside(self, bodies: Mapping[str, str], kind: RemovalKind, removal: str) -> None:
        """Keep messages as one removal. They are still to be taken out of, or changed in, the thread."""
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
        gone = and_(of(_MESSAGES, *self._key), _MESSAGES.c.id.in_(sorted(ids)))
        self._connection.execute(delete(_MESSAGES).where(gone))
        self.order = [id for id in self.order if id not in set(ids)]

    def write(self, order: Sequence[str], bodies: Mapping[str, str]) -> None:
        """Make the thread's order this one. `bodies`: of the messages that are new or changed."""
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


def take(thread: Thread, given: Given, removal: str, *, edits: bool) -> None:
    """Take a client's messages into the thread, before its run. edits: a message that is shown last and known may be
    asked again, with what followed it set aside as `removal`."""
    wanted = thread.wanted(given)
    ids = [str(message["id"]) for message in wanted]
    if thread.order and not _recognised(wanted, thread.order):
        stored = thread.bodies()
        if names := history.retold(stored, wanted):
            thread.rename(names, stored)
    changed = thread.edited(wanted)
    if edits and history.asks_again(wanted, thread.order):
        # What follows a message that is asked again, and its own former words if it comes changed.
        last = ids[-1]
        after = thread.order[thread.order.index(last) + 1 :]
        kind: RemovalKind = "edited" if changed else "regenerated"
        thread.set_aside({**thread.bodies_of(after), **changed}, kind, removal)
        thread.take_out(after)
    elif changed:
        thread.set_aside(changed, "changed", removal)
    known = set(thread.order) - set(changed)
    new = {id: _text(each) for id, each in zip(ids, wanted, strict=True) if id not in known}
    thread.write(history.appended(thread.order, ids), new)


def _recognised(given: Given, stored: Sequence[str]) -> bool:
    known = set(stored)
    return any(str(each["id"]) in known and each.get("role") not in history.INSTRUCTIONS for each in given)


def recall(thread: Thread, given: Given) -> tuple[Wire, ...]:
    """What the thread says up to the last message that a client gives, with what it gives; () where the client shows
    the history itself, or there is none."""
    wanted = thread.wanted(given)
    if not thread.order or history.shows_history(wanted, thread.order):
        return ()
    stored = thread.bodies()
    if not _recognised(wanted, thread.order) and history.retold(stored, wanted):
        return ()
    # The thread with what is given, up to the last message given.
    bodies = {str(message["id"]): dict(message) for message in [*stored, *wanted]}
    order = history.appended([str(each["id"]) for each in stored], [str(each["id"]) for each in wanted])
    end = order.index(str(wanted[-1]["id"])) + 1 if wanted else len(order)
    return tuple(bodies[id] for id in order[:end])


def add(connection: Connection, tenant: str, thread_id: str, given: Given) -> None:
    """Add what a run said to its thread: those of its messages that are not there yet, behind what they follow."""
    thread = Thread.read(connection, tenant, thread_id)
    wanted = thread.wanted(given)
    known = set(thread.order)
    new = {str(each["id"]): _text(each) for each in wanted if str(each["id"]) not in known}
    if not new:
        return
    ids = [str(each["id"]) for each in wanted]
    answers = thread.answers(known - set(ids))
    thread.write(history.concluded(thread.order, ids, answers.__contains__), new)


def load(connection: Connection, tenant: str, thread_id: str) -> list[Wire]:
    found = connection.scalars(_BODIES, bound(tenant, thread_id))
    return [decoded(body) for body in contents.whole(connection, tenant, found.all())]


def copy(connection: Connection, tenant: str, thread_id: str, message_id: str, copy_id: str) -> None:
    """Give another thread the messages up to one of them, and what that one caused. RequestError("not_found")."""
    bodies = {str(each["id"]): each for each in load(connection, tenant, thread_id)}
    order = list(bodies)
    caused = _with_what_it_caused(bodies, _known(message_id, bodies))
    kept = order[: 1 + max(order.index(id) for id in caused)]
    other = Thread.read(connection, tenant, copy_id)
    other.write(kept, {id: _text(bodies[id]) for id in kept})


def _known(message_id: str, ids: Container[str]) -> str:
    if message_id not in ids:
        raise RequestError("not_found", "There is no such message in this thread.", "messageId")
    return message_id


def remove(connection: Connection, tenant: str, thread_id: str, message_id: str, removal: str) -> None:
    """Delete a message at a person's wish, with its calls' results and activities. RequestError("not_found")."""
    thread = Thread.read(connection, tenant, thread_id)
    bodies = {str(each["id"]): each for each in thread.bodies()}
    gone = _with_what_it_caused(bodies, _known(message_id, bodies))
    thread.set_aside({id: _text(bodies[id]) for id in gone}, "deleted", removal)
    thread.take_out(gone)


def _with_what_it_caused(bodies: Mapping[str, Wire], message_id: str) -> list[str]:
    """A message, the results of its calls, and the activities behind those."""
    calls = {call["id"] for call in bodies[message_id].get("toolCalls") or ()}
    gone: list[str] = []
    following = False
    for id, each in bodies.items():
        shown = following and each.get("role") == "activity"
        following = shown or id == message_id or each.get("toolCallId") in calls
        gone += [id] if following else []
    return gone


def removals(connection: Connection, tenant: str, thread_id: str) -> list[Removal]:
    """What edits took away, latest first."""
    query = select(_REMOVED).where(of(_REMOVED, tenant, thread_id))
    rows = connection.execute(query.order_by(_REMOVED.c.removed_at.desc(), _REMOVED.c.removal)).all()
    bodies = contents.whole(connection, tenant, [row.body for row in rows])
    found: dict[str, list[tuple[Any, str]]] = {}
    for row, body in zip(rows, bodies, strict=True):
        found.setdefault(row.removal, []).append((row, body))
    return [_removal(sorted(group, key=lambda each: each[0].place)) for group in found.values()]


def _removal(group: Sequence[tuple[Any, str]]) -> Removal:
    first = group[0][0]
    return Removal(
        id=first.removal,
        kind=first.kind,
        after_id=first.after_id,
        removed_at=first.removed_at,
        messages=[decoded(body) for _, body in group],
    )


def restore(connection: Connection, tenant: str, thread_id: str, removal: str, swapped: str) -> None:
    """Bring back what an edit took away. RequestError("not_found").

    What was deleted goes back to its place. Words that were changed, and answers that were asked again, come back in
    the place of those that are there since, which are set aside as `swapped` in their turn.
    """
    this = and_(of(_REMOVED, tenant, thread_id), _REMOVED.c.removal == removal)
    rows = connection.execute(select(_REMOVED).where(this).order_by(_REMOVED.c.place)).all()
    if not rows:
        raise RequestError("not_found", "There is nothing of that id to be restored in this thread.", "removalId")
    connection.execute(delete(_REMOVED).where(this))
    thread = Thread.read(connection, tenant, thread_id)
    back = {row.id for row in rows}
    kind: RemovalKind = rows[0].kind
    if kind in ("regenerated", "edited"):
        start = thread.order.index(rows[0].after_id) + 1 if rows[0].after_id in thread.order else 0
        since = thread.order[start:]
    else:
        since = [id for id in thread.order if id in back]
    thread.set_aside(thread.bodies_of(since), kind, swapped)
    if kind in ("regenerated", "edited"):
        thread.take_out(since)
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
