"""Files in messages, kept once: what base64 in a body stands for is kept by its SHA-256, once for each tenant.

A client sends all pictures of a thread with every turn; messages, responses and kept runs would each hold them whole.
In what is written to a table's `body`, base64 of LEAST bytes or more that is a data URL's, or a whole string, is
therefore replaced by a mark and the content's digest; what stands around it, the media type among it, stays. `joined`
gives what `parted` was given, character for character, so nobody outside the store knows of this.

A content is there as long as a thread or a response uses it: a thread from when one of its messages or kept runs held
it until the thread is deleted, so that what an edit took away can be had back; a response while its body holds it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Table, delete, exists, select
from sqlalchemy.sql import ColumnElement

from adapters.errors import RequestError
from agent_server.runs.store.rows import of_owners, upserting
from agent_server.runs.store.schema import contents, response_contents, thread_contents

LEAST = 1024
"""Bytes. What is smaller takes less room where it is."""
MARK = "\x1a"
"""Begins what stands for a content. No JSON has this character in it: it is escaped there."""
USES = (thread_contents, response_contents)
_URL = ";base64,"
_SHORTEST = (LEAST + 2) // 3 * 4
_SAMPLE, _STRIDE = 64, 1024
"""A run of base64 is looked for by samples: one that is long enough holds a whole one, wherever it begins."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SAMPLED = re.compile(rf"[A-Za-z0-9+/]{{{_SAMPLE}}}")
_LETTERS = re.compile(r"[A-Za-z0-9+/]*")
_MARKED = re.compile(rf"{MARK}(?:{MARK}|([0-9a-f]{{64}}))")
_PIECE = 3 * 4 * 2**14
"""Bytes, or characters, that one call works on: other threads, the server's among them, wait for no longer."""
_SLICE = 200
"""Contents that one statement names."""
_ATTEMPTS = 8
Key = tuple[str, str]
"""A tenant and a digest."""


class Parted(NamedTuple):
    """A body as its table has it, and what was taken out of it, by digest."""

    text: str
    contents: Mapping[str, bytes]


def parted(text: str) -> Parted:
    """A body without its larger contents."""
    text = text.replace(MARK, MARK + MARK)
    if len(text) < _SHORTEST:
        return Parted(text, {})
    found: dict[str, bytes] = {}
    pieces, done = [], 0
    for start, end in _runs(text):
        if _is_whole(text, start, end) and (content := _decoded(text[start:end])) is not None:
            digest = hashlib.sha256(content).hexdigest()
            found[digest] = content
            pieces += [text[done:start], MARK, digest]
            done = end
    return Parted("".join([*pieces, text[done:]]), found)


def _runs(text: str) -> Iterator[tuple[int, int]]:
    """Where base64 that is long enough begins and ends, in time linear in the text, however it is made."""
    done = place = 0
    while place < len(text):
        if _SAMPLED.match(text, place) is None:
            place += _STRIDE
            continue
        before = text[max(done, place - _STRIDE) : place]
        start = place - len(before) + len(before.rstrip(_ALPHABET))
        done = place = _end(text, place)
        if done - start >= _SHORTEST:
            yield start, done


def _end(text: str, place: int) -> int:
    """Where the run that `place` is in ends."""
    while (found := _LETTERS.match(text, place, place + _PIECE)) and found.end() > place:
        place = found.end()
    return place + len(text[place : place + 2]) - len(text[place : place + 2].lstrip("="))


def _is_whole(text: str, start: int, end: int) -> bool:
    """Whether a run is a data URL's, or a whole string, of JSON or of JSON in a string."""
    return text.endswith(_URL, 0, start) or (text[start - 1 : start] == '"' and text[end : end + 1] in ('"', "\\"))


def _decoded(data: str) -> bytes | None:
    """None for what would not be encoded to the same again."""
    if len(data) % 4 or base64.b64encode(base64.b64decode(data[-4:])).decode() != data[-4:]:
        return None
    return b"".join(base64.b64decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE))


def encoded(content: bytes) -> str:
    """In base64."""
    pieces = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
    return "".join(base64.b64encode(piece).decode() for piece in pieces)


def joined(text: str, found: Mapping[str, str]) -> str:
    """The body that `parted` made this of. found: contents in base64. KeyError for one that is not there."""
    return _MARKED.sub(lambda match: found[match[1]] if match[1] else MARK, text)


def marked(text: str) -> set[str]:
    """The digests of what was taken out of a body."""
    return {match[1] for match in _MARKED.finditer(text) if match[1]} if MARK in text else set()


def without_marks(text: str) -> str:
    """The body as JSON that can be read for what it says beside its contents."""
    return text.replace(MARK, "")


def whole(connection: Connection, tenant: str, texts: Sequence[str]) -> list[str]:
    """The bodies that these were made of. RequestError("conflict") if a content was deleted since they were read."""
    digests = set[str]().union(*map(marked, texts))
    if not digests and not any(MARK in text for text in texts):
        return list(texts)
    query = select(contents.c.digest, contents.c.content).where(_these(contents, tenant, digests))
    found = {row.digest: encoded(row.content) for row in connection.execute(query)}
    if len(found) < len(digests):
        raise RequestError("conflict", "A file in this conversation is no longer there: it was deleted meanwhile.")
    return [joined(text, found) if MARK in text else text for text in texts]


def whole_one(connection: Connection, tenant: str, text: str | None) -> str | None:
    return None if text is None else (whole(connection, tenant, [text]))[0]


def keep(connection: Connection, uses: Table, tenant: str, owner: str, found: Mapping[str, bytes]) -> None:
    """Note that a thread or a response uses contents, and keep those that are new. uses: one of USES."""
    if not found:
        return
    name = _owner(uses).name
    rows = [{"tenant": tenant, name: owner, "digest": digest} for digest in sorted(found)]
    # Written before the contents are looked at: SQLite gives the file to nobody else from here on.
    connection.execute(upserting(connection.dialect.name, uses, ()), rows)
    for _ in range(_ATTEMPTS):
        missing = sorted(found.keys() - _held(connection, tenant, found))
        if not missing:
            return
        new = [{"tenant": tenant, "digest": digest, "content": found[digest]} for digest in missing]
        connection.execute(upserting(connection.dialect.name, contents, ()), new)
    raise RequestError("unavailable", "A file could not be kept: others delete it all the time.", None, 1.0)


def _held(connection: Connection, tenant: str, digests: Collection[str]) -> set[str]:
    """Those that are there, and that no other server removes before this transaction ends."""
    query = select(contents.c.digest).where(_these(contents, tenant, digests)).order_by(contents.c.digest)
    return set(connection.scalars(query.with_for_update(read=True, key_share=True)))


def keep_only(connection: Connection, uses: Table, tenant: str, owner: str, found: Mapping[str, bytes]) -> None:
    """The same, and that it uses no others any more; those that nothing uses then are removed."""
    others = uses.c.digest.not_in(sorted(found))
    gone = delete(uses).where(uses.c.tenant == tenant, _owner(uses) == owner, others).returning(uses.c.digest)
    released = [(tenant, digest) for digest in connection.scalars(gone)]
    keep(connection, uses, tenant, owner, found)
    release(connection, released)


def used(connection: Connection, uses: Table, owners: Sequence[tuple[str, str]]) -> list[Key]:
    """What threads or responses use, each of which is a tenant and an id."""
    chosen = of_owners(uses, _owner(uses).name, owners)
    rows = connection.execute(select(uses.c.tenant, uses.c.digest).where(chosen).distinct())
    return [(row.tenant, row.digest) for row in rows]


def release(connection: Connection, keys: Sequence[Key]) -> None:
    """Remove those of these contents that nothing uses any more."""
    for start in range(0, len(keys), _SLICE):
        _release(connection, of_owners(contents, "digest", keys[start : start + _SLICE]))


def release_all(connection: Connection, tenant: str) -> None:
    """Remove what nothing of a tenant's uses."""
    _release(connection, contents.c.tenant == tenant)


def _release(connection: Connection, chosen: ColumnElement[bool]) -> None:
    # Behind this lock every use is seen: who takes one up holds the content, or waits here and finds it gone.
    locked = select(contents.c.tenant, contents.c.digest).where(chosen).order_by(contents.c.tenant, contents.c.digest)
    connection.execute(locked.with_for_update())
    unused = [~exists().where(uses.c.tenant == contents.c.tenant, uses.c.digest == contents.c.digest) for uses in USES]
    connection.execute(delete(contents).where(chosen, *unused))


def _these(table: Table, tenant: str, digests: Collection[str]) -> ColumnElement[bool]:
    return (table.c.tenant == tenant) & table.c.digest.in_(sorted(digests))


def _owner(uses: Table) -> ColumnElement[str]:
    return uses.c.thread_id if uses is thread_contents else uses.c.id
