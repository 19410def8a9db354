"""Files in messages, stored once: base64 data in a body is stored by its SHA-256 digest, once per tenant.

A client sends all pictures of a thread with every turn; messages, responses and saved runs would each contain them.
Therefore, in a table's `body`, base64 data of at least LEAST bytes that belongs to a data URL or is a whole string is
replaced by a mark and the content's digest. The text around it, including the media type, stays. `joined` restores the
input of `parted` exactly, so code outside the store does not notice.

A content exists while a thread or a response uses it. A thread uses it from when one of its messages or saved runs
contains it until the thread is deleted, so that edits can be undone; a response uses it while its body contains it.
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
"""Bytes. Smaller contents take less space inline."""
MARK = "\x1a"
"""Begins a reference to a content. JSON never contains this character unescaped."""
USES = (thread_contents, response_contents)
_URL = ";base64,"
_SHORTEST = (LEAST + 2) // 3 * 4
_SAMPLE, _STRIDE = 64, 1024
"""Base64 data is found by sampling: a run that is long enough contains a whole sample, wherever it begins."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SAMPLED = re.compile(rf"[A-Za-z0-9+/]{{{_SAMPLE}}}")
_LETTERS = re.compile(r"[A-Za-z0-9+/]*")
_MARKED = re.compile(rf"{MARK}(?:{MARK}|([0-9a-f]{{64}}))")
_PIECE = 3 * 4 * 2**14
"""Bytes or characters that one call processes while it holds the GIL, so that the server's thread can run between."""
_SLICE = 200
"""Contents per statement."""
_ATTEMPTS = 8
Key = tuple[str, str]
"""A tenant and a digest."""


class SplitBody(NamedTuple):
    """A body as it is stored, and the contents that were taken out of it, by digest."""

    text: str
    contents: Mapping[str, bytes]


def parted(text: str) -> SplitBody:
    """Take the larger contents out of a body."""
    text = text.replace(MARK, MARK + MARK)
    if len(text) < _SHORTEST:
        return SplitBody(text, {})
    by_digest: dict[str, bytes] = {}
    pieces, done = [], 0
    for start, end in _runs(text):
        # Of a data URL, or a whole string in JSON or in JSON within a string.
        is_whole = text[start - 1 : start] == '"' and text[end : end + 1] in ('"', "\\")
        if not (is_whole or text.endswith(_URL, 0, start)):
            continue
        data = text[start:end]
        if len(data) % 4 or base64.b64encode(base64.b64decode(data[-4:])).decode() != data[-4:]:
            continue  # encoding would not reproduce it exactly
        content = b"".join(base64.b64decode(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE))
        digest = hashlib.sha256(content).hexdigest()
        by_digest[digest] = content
        pieces += [text[done:start], MARK, digest]
        done = end
    return SplitBody("".join([*pieces, text[done:]]), by_digest)


def _runs(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of base64 runs that are long enough, in time linear in the text's length for any text."""
    done = place = 0
    while place < len(text):
        if _SAMPLED.match(text, place) is None:
            place += _STRIDE
            continue
        before = text[max(done, place - _STRIDE) : place]
        start = place - len(before) + len(before.rstrip(_ALPHABET))
        while (match := _LETTERS.match(text, place, place + _PIECE)) and match.end() > place:
            place = match.end()
        padded = text[place : place + 2]
        done = place = place + len(padded) - len(padded.lstrip("="))
        if done - start >= _SHORTEST:
            yield start, done


def encoded(content: bytes) -> str:
    """Encode a content in base64."""
    pieces = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
    return "".join(base64.b64encode(piece).decode() for piece in pieces)


def joined(text: str, base64_contents: Mapping[str, str]) -> str:
    """Restore the body that `parted` got. base64_contents: by digest. Raises KeyError for a missing content."""
    return _MARKED.sub(lambda match: base64_contents[match[1]] if match[1] else MARK, text)


def marked(text: str) -> set[str]:
    """Return the digests of the contents that were taken out of a body."""
    return {match[1] for match in _MARKED.finditer(text) if match[1]} if MARK in text else set()


def without_marks(text: str) -> str:
    """Remove the marks, so that the body is valid JSON, in which digests take the place of contents."""
    return text.replace(MARK, "")


def whole(connection: Connection, tenant: str, texts: Sequence[str]) -> list[str]:
    """Restore bodies with their contents. Raises RequestError("conflict") if a content has been deleted meanwhile."""
    digests = set[str]().union(*map(marked, texts))
    if not digests and not any(MARK in text for text in texts):
        return list(texts)
    query = select(contents.c.digest, contents.c.content).where(_these(contents, tenant, digests))
    base64_contents = {row.digest: encoded(row.content) for row in connection.execute(query)}
    if len(base64_contents) < len(digests):
        raise RequestError("conflict", "A file in this conversation is no longer there: it was deleted meanwhile.")
    return [joined(text, base64_contents) if MARK in text else text for text in texts]


def whole_one(connection: Connection, tenant: str, text: str | None) -> str | None:
    return None if text is None else (whole(connection, tenant, [text]))[0]


def keep(connection: Connection, uses: Table, tenant: str, owner: str, files: Mapping[str, bytes]) -> None:
    """Record that a thread or a response uses these files, and store the new ones. uses: one of USES. files: by
    digest."""
    if not files:
        return
    name = _owner(uses).name
    rows = [{"tenant": tenant, name: owner, "digest": digest} for digest in sorted(files)]
    # Written before the contents are read, since SQLite locks the database from the first write on.
    connection.execute(upserting(connection.dialect.name, uses, ()), rows)
    stored = select(contents.c.digest).where(_these(contents, tenant, files)).order_by(contents.c.digest)
    for _ in range(_ATTEMPTS):
        # Locked, so that no other server removes them before this transaction ends.
        missing = sorted(files.keys() - set(connection.scalars(stored.with_for_update(read=True, key_share=True))))
        if not missing:
            return
        new = [{"tenant": tenant, "digest": digest, "content": files[digest]} for digest in missing]
        connection.execute(upserting(connection.dialect.name, contents, ()), new)
    raise RequestError(
        "unavailable", "A file could not be stored, because other servers delete it repeatedly.", None, 1.0
    )


def keep_only(connection: Connection, uses: Table, tenant: str, owner: str, files: Mapping[str, bytes]) -> None:
    """Do what `keep` does, and record that all other files are no longer used. Delete those that have no use left."""
    others = uses.c.digest.not_in(sorted(files))
    dropped = delete(uses).where(uses.c.tenant == tenant, _owner(uses) == owner, others).returning(uses.c.digest)
    released = [(tenant, digest) for digest in connection.scalars(dropped)]
    keep(connection, uses, tenant, owner, files)
    release(connection, released)


def used(connection: Connection, uses: Table, owners: Sequence[tuple[str, str]]) -> list[Key]:
    """Return the contents that threads or responses use. owners: their tenants and ids."""
    of_these = of_owners(uses, _owner(uses).name, owners)
    rows = connection.execute(select(uses.c.tenant, uses.c.digest).where(of_these).distinct())
    return [(row.tenant, row.digest) for row in rows]


def release(connection: Connection, keys: Sequence[Key]) -> None:
    """Delete those of these contents that have no use left."""
    for start in range(0, len(keys), _SLICE):
        _release(connection, of_owners(contents, "digest", keys[start : start + _SLICE]))


def release_all(connection: Connection, tenant: str) -> None:
    """Delete all contents of a tenant that have no use left."""
    _release(connection, contents.c.tenant == tenant)


def _release(connection: Connection, condition: ColumnElement[bool]) -> None:
    # After this lock all uses are visible: a new use either locks the content first or waits and finds it deleted.
    locked = (
        select(contents.c.tenant, contents.c.digest).where(condition).order_by(contents.c.tenant, contents.c.digest)
    )
    connection.execute(locked.with_for_update())
    unused = [~exists().where(uses.c.tenant == contents.c.tenant, uses.c.digest == contents.c.digest) for uses in USES]
    connection.execute(delete(contents).where(condition, *unused))


def _these(table: Table, tenant: str, digests: Collection[str]) -> ColumnElement[bool]:
    return (table.c.tenant == tenant) & table.c.digest.in_(sorted(digests))


def _owner(uses: Table) -> ColumnElement[str]:
    return uses.c.thread_id if uses is thread_contents else uses.c.id
