"""Threads, their messages, runs, interrupts and feedback.

What is there already stays. SQLite keeps each CREATE TABLE that a server ran before it was killed, or before another
one overtook it, in versions that did not migrate in one transaction; the version then says that nothing was made.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "threads",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("archived", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_index("threads_by_time", "threads", ["tenant", "updated_at", "id"], if_not_exists=True)
    op.create_table(
        "messages",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "runs",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("parent_run_id", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("owner", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("usage", sa.Text),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        if_not_exists=True,
    )
    op.create_index("runs_by_status", "runs", ["status", "owner"], if_not_exists=True)
    op.create_table(
        "interrupts",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("interrupt", sa.Text, nullable=False),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("result_message_id", sa.Text),
        sa.Column("resumed_by", sa.Text),
        if_not_exists=True,
    )
    op.create_table(
        "feedback",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_table(
        "responses",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    for name in ("responses", "feedback", "interrupts", "runs", "messages", "threads"):
        op.drop_table(name, if_exists=True)
