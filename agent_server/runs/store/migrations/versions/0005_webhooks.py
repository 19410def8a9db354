"""Who is to be told of a run's end."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Nobody is told of the runs that go on."""
    op.drop_table("webhooks", if_exists=True)
