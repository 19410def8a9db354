"""Erasures, so that a server that starts again continues them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "erasures",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("responses", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("owner", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Erasures that have not ended have to be asked for again."""
    op.drop_table("erasures", if_exists=True)
