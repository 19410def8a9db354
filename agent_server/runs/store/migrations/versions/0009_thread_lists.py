"""Indexes for the lists of threads: by agent, and without those that are archived."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("threads_by_time", "threads", if_exists=True)
    op.create_index("threads_by_time", "threads", ["tenant", "updated_at", "id", "archived"], if_not_exists=True)
    columns = ["tenant", "agent_id", "updated_at", "id", "archived"]
    op.create_index("threads_by_agent", "threads", columns, if_not_exists=True)


def downgrade() -> None:
    op.drop_index("threads_by_agent", "threads", if_exists=True)
    op.drop_index("threads_by_time", "threads", if_exists=True)
    op.create_index("threads_by_time", "threads", ["tenant", "updated_at", "id"], if_not_exists=True)
