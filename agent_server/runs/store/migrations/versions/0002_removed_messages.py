"""What edits of a thread's history take away is kept; runs may wait."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "removed_messages",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("removal", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("after_id", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("removed_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    """What was set aside goes with its table; the threads as they stand stay."""
    op.drop_table("removed_messages", if_exists=True)
    op.execute("UPDATE runs SET status = 'broken' WHERE status = 'waiting'")
