"""What users have granted at the authorization servers of MCP servers, encrypted."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "grants",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("server", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.Text),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
    )
    op.create_index("grants_by_state", "grants", ["state"], if_not_exists=True)


def downgrade() -> None:
    """Every user is asked again."""
    op.drop_table("grants", if_exists=True)
