"""What runs have said so far, so that a run goes on behind the end of its server and is read without a gap."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_events",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("thread_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("packed", sa.LargeBinary, nullable=False),
        if_not_exists=True,
    )
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("kept_runs")}
    if "progress" not in known:
        op.add_column("kept_runs", sa.Column("progress", sa.BigInteger, nullable=False, server_default="0"))
    if "ended_at" not in known:
        op.add_column("kept_runs", sa.Column("ended_at", sa.BigInteger))
    op.create_index("kept_by_run", "kept_runs", ["tenant", "run_id"], if_not_exists=True)
    op.create_index("kept_by_end", "kept_runs", ["ended_at"], if_not_exists=True)


def downgrade() -> None:
    """Runs that go on are recorded as broken when their server ends."""
    op.drop_index("kept_by_end", "kept_runs", if_exists=True)
    op.drop_index("kept_by_run", "kept_runs", if_exists=True)
    op.drop_column("kept_runs", "ended_at")
    op.drop_column("kept_runs", "progress")
    op.drop_table("run_events", if_exists=True)
