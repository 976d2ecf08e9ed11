"""The slot time that the studies of a token may take, and how often such a token has written."""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("max_slot_seconds", sa.Float()))
    op.add_column("tokens", sa.Column("writes", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("tokens", "writes")
    op.drop_column("tokens", "max_slot_seconds")
