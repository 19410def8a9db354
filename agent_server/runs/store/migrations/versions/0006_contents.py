"""Files in messages are kept once.

`parted` and `joined` are the store's own: a version that changes what they write brings a migration of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa
from alembic import op

from agent_server.runs.store.contents import LEAST, MARK, SplitBody, encoded, joined, marked, parted
from agent_server.runs.store.rows import upserting
from agent_server.runs.store.schema import contents, response_contents, thread_contents

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
PAGE = 8
"""Rows that are read at once; each may be some megabytes."""
Row = sa.Row[tuple[str, ...]]
KEYS = {
    "messages": ("tenant", "thread_id", "id"),
    "removed_messages": ("tenant", "thread_id", "removal", "id"),
    "kept_runs": ("tenant", "thread_id", "run_id"),
    "responses": ("tenant", "id"),
    "interrupts": ("tenant", "thread_id", "id"),
}
BODIES = dict.fromkeys(KEYS, ("body",)) | {"interrupts": ("interrupt", "call", "answer", "result")}
PLACES = [(name, body) for name, bodies in BODIES.items() for body in bodies]


def upgrade() -> None:
    op.create_table(
        "contents",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
    for name, owner, index in (
        ("thread_contents", "thread_id", "threads_by_content"),
        ("response_contents", "id", "responses_by_content"),
    ):
        op.create_table(
            name,
            sa.Column("tenant", sa.Text, primary_key=True),
            sa.Column(owner, sa.Text, primary_key=True),
            sa.Column("digest", sa.Text, primary_key=True),
            if_not_exists=True,
        )
        op.create_index(index, name, ["tenant", "digest"], if_not_exists=True)
    for place in PLACES:
        for row in _rows(place, lambda body: sa.func.length(body) > LEAST):
            if (made := parted(row.body)).text != row.body:
                _keep(place, row, made)


def downgrade() -> None:
    """Every body has its files again."""
    for place in PLACES:
        for row in _rows(place, lambda body: body.contains(MARK)):
            _write(place, row, joined(row.body, _contents(row.tenant, marked(row.body))))
    for name in ("response_contents", "thread_contents", "contents"):
        op.drop_table(name, if_exists=True)


Place = tuple[str, str]
"""A table, and a column of it."""


def _table(place: Place) -> sa.TableClause:
    name, body = place
    return sa.table(name, *(sa.column(each, sa.Text) for each in (*KEYS[name], body)))


def _rows(place: Place, wanted: Callable[[sa.ColumnElement[str]], sa.ColumnElement[bool]]) -> Iterator[Row]:
    """Each row's key, and its `body`."""
    source, (name, column) = _table(place), place
    keys, body = [source.c[each] for each in KEYS[name]], source.c[column]
    query = sa.select().add_columns(*keys, body.label("body")).where(wanted(body)).order_by(*keys).limit(PAGE)
    page = op.get_bind().execute(query).all()
    while page:
        yield from page
        last = tuple(getattr(page[-1], each) for each in KEYS[name])
        page = op.get_bind().execute(query.where(sa.tuple_(*keys) > sa.tuple_(*last))).all()


def _keep(place: Place, row: Row, made: SplitBody) -> None:
    connection = op.get_bind()
    uses, owner = (response_contents, "id") if place[0] == "responses" else (thread_contents, "thread_id")
    for digest, content in made.contents.items():
        of = {"tenant": row.tenant, "digest": digest}
        connection.execute(upserting(connection.dialect.name, contents, ()), {**of, "content": content})
        connection.execute(upserting(connection.dialect.name, uses, ()), {**of, owner: getattr(row, owner)})
    _write(place, row, made.text)


def _write(place: Place, row: Row, body: str) -> None:
    source, (name, column) = _table(place), place
    here = sa.and_(*(source.c[each] == getattr(row, each) for each in KEYS[name]))
    op.get_bind().execute(sa.update(source).where(here).values({column: body}))


def _contents(tenant: str, digests: set[str]) -> dict[str, str]:
    query = sa.select(contents.c.digest, contents.c.content).where(contents.c.tenant == tenant)
    found = op.get_bind().execute(query.where(contents.c.digest.in_(digests)))
    return {row.digest: encoded(row.content) for row in found}
