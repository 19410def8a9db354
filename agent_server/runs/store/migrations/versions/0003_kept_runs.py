"""Runs that wait for slow tools are kept."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kept_runs",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Runs that could be taken up are broken for an earlier version."""
    op.drop_table("kept_runs", if_exists=True)
