"""The store's tables. `tenant` is part of every key, so that no query can omit it.

JSON is stored as text: the store does not query it, and PostgreSQL's JSON types reject `\\u0000`. The larger files of a
`body` and of an interrupt's JSON are in `contents`. Times are integer milliseconds since the epoch. `key` is the name
of the API key that created something, or a token's subject; of a grant, the user's name. A change here needs a
migration; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

threads = Table(
    "threads",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("agent_id", Text, nullable=False),
    Column("archived", Boolean, nullable=False),
    Column("state", Text),
    Column("metadata", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("key", Text, nullable=False, server_default=""),
)
# `archived` is part of the indexes so that rows of archived threads need not be read for a list.
Index("threads_by_time", threads.c.tenant, threads.c.updated_at, threads.c.id, threads.c.archived)
Index("threads_by_agent", threads.c.tenant, threads.c.agent_id, threads.c.updated_at, threads.c.id, threads.c.archived)

messages = Table(
    "messages",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("digest", Text, nullable=False),
    Column("body", Text, nullable=False),
)

removed_messages = Table(
    "removed_messages",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("removal", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("place", Integer, nullable=False),
    Column("after_id", Text),
    Column("body", Text, nullable=False),
    Column("removed_at", BigInteger, nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("id", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", BigInteger, nullable=False),
)

kept_runs = Table(
    "kept_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("progress", BigInteger, nullable=False, server_default="0"),
    Column("ended_at", BigInteger),
)
Index("kept_by_run", kept_runs.c.tenant, kept_runs.c.run_id)
Index("kept_by_end", kept_runs.c.ended_at)

run_events = Table(
    "run_events",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("packed", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("parent_run_id", Text),
    Column("status", Text, nullable=False),
    Column("owner", BigInteger, nullable=False),
    Column("error", Text),
    Column("outcome", Text),
    Column("usage", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)
Index("runs_by_status", runs.c.status, runs.c.owner)

interrupts = Table(
    "interrupts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("interrupt", Text, nullable=False),
    Column("call", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("answer", Text),
    Column("result", Text),
    Column("result_message_id", Text),
    Column("resumed_by", Text),
)

feedback = Table(
    "feedback",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("score", Float, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

responses = Table(
    "responses",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("key", Text, nullable=False, server_default=""),
)

contents = Table(
    "contents",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

thread_contents = Table(
    "thread_contents",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
)
Index("threads_by_content", thread_contents.c.tenant, thread_contents.c.digest)

response_contents = Table(
    "response_contents",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
)
Index("responses_by_content", response_contents.c.tenant, response_contents.c.digest)

erasures = Table(
    "erasures",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("key", Text),
    Column("by", Text, nullable=False),
    Column("threads", Integer, nullable=False),
    Column("responses", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("owner", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
)

grants = Table(
    "grants",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("body", Text, nullable=False),
    Column("state", Text),
    Column("updated_at", BigInteger, nullable=False),
)
Index("grants_by_state", grants.c.state)

WHOLE_MESSAGE = -1
"""The `position` of feedback on a whole message."""

OF_A_THREAD = (messages, removed_messages, kept_runs, run_events, webhooks, runs, interrupts, feedback, thread_contents)
