"""The key with which a thread was begun, or a response asked for."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
TABLES = ("threads", "responses")


def upgrade() -> None:
    for table in TABLES:
        known = {each["name"] for each in sa.inspect(op.get_bind()).get_columns(table)}
        if "key" not in known:
            op.add_column(table, sa.Column("key", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    """Whose they were is forgotten; the threads stay."""
    for table in TABLES:
        op.drop_column(table, "key")
